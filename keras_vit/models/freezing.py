"""Freezes and unfreezes layers, and adds low-rank adapters (LoRA)."""

import math
from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_vit.layers.validation import check_positive_int
from keras_vit.models.any_model import find_vision_transformer, layers_before, layers_up_to
from keras_vit.models.layer_numbers import layer_number

LORA_TARGETS = ("query", "key", "value", "out", "mlp_1", "mlp_2")


def freeze(
    model: keras.Model, up_to: int | str = "head", write: Callable[[str], object] = print
) -> int:
    """Freezes a model up to a block or the head of its Vision Transformer.

    All other layers become trainable. If the Vision Transformer is nested in another model, the
    layers before it are frozen too. Earlier calls have no effect on the result. Recompile a
    compiled model afterwards. To train everything, call `unfreeze`.

    Args:
        model: a `keras.Model` that is or contains a Vision Transformer.
        up_to: number of the last block to freeze, counted from 1, or from the end if negative; 0
            freezes only the layers before the first block. "head" freezes everything before the
            head, for a linear probe.
        write: function that receives one line with the number of trainable parameters.

    Returns:
        The number of trainable parameters.

    Raises:
        ValueError: the model has no Vision Transformer, or `up_to` is invalid.
    """
    vit = find_vision_transformer(model)
    if up_to == "head":
        frozen = layers_before(model, vit)
        frozen += [layer for layer in vit.layers if layer is not vit.head]
    elif isinstance(up_to, str):
        raise ValueError(f"`up_to` must be a block number or 'head'. Received: {up_to=}")
    else:
        frozen = layers_up_to(model, vit, layer_number(vit, up_to, argument="up_to"))
    _set_trainable(model, True)
    for layer in frozen:
        _set_trainable(layer, False)
    return _report(model, write)


def unfreeze(model: keras.Model, write: Callable[[str], object] = print) -> int:
    """Makes all layers of a model trainable, as for fine-tuning after a linear probe.

    With TensorFlow, `model.trainable = True` has no effect if the attribute is True already, even
    if layers of the model are frozen. If the model has LoRA adapters, both the adapters and the
    kernels become trainable. Recompile a compiled model afterwards.

    Args:
        model: any `keras.Model`.
        write: function that receives one line with the number of trainable parameters.

    Returns:
        The number of trainable parameters.
    """
    _set_trainable(model, True)
    return _report(model, write)


def enable_lora(
    model: keras.Model,
    rank: int,
    targets: Sequence[str] = ("query", "value"),
    alpha: float | None = None,
    write: Callable[[str], object] = print,
) -> int:
    """Adds low-rank adapters to every block of a Vision Transformer.

    All other weights before the head are frozen. The adapters use Keras' `enable_lora`. Recompile a
    compiled model afterwards. Before an export or `checkpoints.save`, save the model as `.keras`,
    which merges the adapters into the kernels, and load it again. The loaded model has no adapters
    and trains only the head; call `enable_lora` again to train new adapters.

    Args:
        model: a `keras.Model` that is or contains a Vision Transformer.
        rank: rank of the adapters, 1 or more.
        targets: layers to adapt in each block, some of "query", "key", "value", "out", "mlp_1",
            "mlp_2".
        alpha: numerator of the adapters' scale, `alpha / rank`; None for a scale of 1.
        write: function that receives one line with the number of trainable parameters.

    Returns:
        The number of trainable parameters.

    Raises:
        ValueError: the model has no Vision Transformer, a target already has an adapter, `rank` is
            not a positive integer, or `targets` is empty or contains an unknown name.

    Reference: Hu et al., "LoRA" (2021), which adapts queries and values.
    """
    check_positive_int("rank", rank)
    if not targets or not set(targets) <= set(LORA_TARGETS):
        raise ValueError(f"`targets` must be some of {LORA_TARGETS}. Received: {targets=}")
    vit = find_vision_transformer(model)
    adapted_layers = [
        [getattr(block if name.startswith("mlp") else block.attention, name) for name in targets]
        for block in vit.blocks
    ]
    if any(layer.lora_enabled for layers in adapted_layers for layer in layers):
        raise ValueError(
            f"The model must not have adapters already. Received: model={model.name!r}"
        )
    freeze(model, "head", write=lambda line: None)
    for block, layers in zip(vit.blocks, adapted_layers):
        block.trainable = True
        for layer in layers:
            layer.enable_lora(rank, lora_alpha=alpha)
        for variable in block.variables:
            variable.trainable = "lora_kernel" in variable.path
    return _report(model, write)


def merge_lora(model: keras.Model) -> keras.Model:
    """Merges the adapters of a model into its kernels and removes them; returns the same model."""
    for layer in model._flatten_layers():
        if not getattr(layer, "lora_enabled", False):
            continue
        adapters = (layer.lora_kernel_a, layer.lora_kernel_b)
        layer._kernel.assign_add(layer.lora_alpha / layer.lora_rank * ops.matmul(*adapters))
        layer.lora_kernel_b.assign(ops.zeros(layer.lora_kernel_b.shape))  # for compiled functions
        layer.lora_enabled = False
        layer._tracker.unlock()
        for variable in adapters:
            layer._untrack_variable(variable)
        layer._tracker.lock()
    return model


def frozen_weights(model: keras.Model) -> list[keras.Variable]:
    """Returns the weights that a model would train if they were not frozen."""
    return [
        variable
        for layer in model._flatten_layers()
        for variable in layer._trainable_variables
        if not variable.trainable
    ]


def _set_trainable(layer, value):
    """Sets `trainable` of a layer, of all layers in it, and of their variables."""
    for inner in layer._flatten_layers():
        # TensorFlow ignores an assignment that does not change the attribute, and Keras then skips
        # the inner layers.
        inner.trainable = not value
        inner.trainable = value


def _report(model, write):
    """Writes and returns the number of trainable parameters."""
    trained = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    total = sum(math.prod(variable.shape) for variable in model.weights)
    write(f"{trained:,} of {total:,} parameters are trainable")
    return trained
