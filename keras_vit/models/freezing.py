"""Which part of a model trains: freezing, and low-rank adapters (LoRA)."""

import math
import numbers
from collections.abc import Callable, Sequence

import keras

from keras_vit.layers.validation import check_positive_int
from keras_vit.models.any_model import find_vision_transformer, layers_before

LORA_TARGETS = ("query", "key", "value", "out", "mlp_1", "mlp_2")


def freeze(model: keras.Model, up_to: int | str = "head", write: Callable[[str], object] = print) -> int:
    """Freezes a model from its input up to some layer of its Vision Transformer, and returns how many parameters train.

    Layers of a model around the Vision Transformer are frozen if they come before it. A compiled model must be compiled
    again; `model.trainable = True` thaws everything.

    Args:
        model: a `keras.Model` with a Vision Transformer in it.
        up_to: the last block that is frozen, counted from 1, or from the end for negative numbers; 0 for the embedding
            alone. Or "head": everything that the head reads, which leaves a linear probe.
        write: takes the line that says what trains.

    Raises:
        ValueError: there is no Vision Transformer in the model, or no such block.
    """
    vit = find_vision_transformer(model)
    if up_to == "head":
        frozen = [layer for layer in vit.layers if layer is not vit.head]
    elif isinstance(up_to, numbers.Integral) and not isinstance(up_to, bool):
        number, first = vit.layer_number(up_to), vit.layers.index(vit.blocks[0])
        frozen = vit.layers[: vit.layers.index(vit.blocks[number - 1]) + 1 if number else first]
    else:
        raise ValueError(f"`up_to` must be the number of a block, or 'head'. Received: up_to={up_to!r}")
    for layer in (*layers_before(model, vit), *frozen):
        layer.trainable = False
    return _report(model, write)


def enable_lora(
    model: keras.Model,
    rank: int,
    targets: Sequence[str] = ("query", "value"),
    alpha: float | None = None,
    write: Callable[[str], object] = print,
) -> int:
    """Freezes a Vision Transformer but its head, and trains low-rank changes of some kernels of every block.

    The adapters are Keras' own (`Dense.enable_lora`). Saving the model as `.keras` adds them to the kernels;
    `checkpoints.save` and exports need that model. A compiled model must be compiled again.

    Args:
        model: a `keras.Model` with a Vision Transformer in it.
        rank: of the changes, 1 or more.
        targets: some of "query", "key", "value", "out", "mlp_1", "mlp_2".
        alpha: the changes are scaled by `alpha / rank`; None for `rank`.
        write: takes the line that says what trains.

    Returns:
        How many parameters train.

    Raises:
        ValueError: there is no Vision Transformer in the model, a target is unknown, or it has adapters already.

    Reference: Hu et al., "LoRA" (2021), which adapts queries and values.
    """
    check_positive_int("rank", rank)
    unknown = [target for target in targets if target not in LORA_TARGETS]
    if unknown or not targets:
        raise ValueError(f"`targets` must be some of {', '.join(LORA_TARGETS)}. Received: targets={tuple(targets)}")
    vit = find_vision_transformer(model)
    kernels = [
        [getattr(block if name.startswith("mlp") else block.attention, name) for name in targets]
        for block in vit.blocks
    ]
    if any(layer.lora_enabled for layers in kernels for layer in layers):
        raise ValueError(f"The adapters of a layer are added once. Received: a model that has some, {model.name!r}")
    freeze(model, "head", write=lambda line: None)
    for block, adapted in zip(vit.blocks, kernels):
        block.trainable = True
        for layer in adapted:
            layer.enable_lora(rank, lora_alpha=alpha)
        for variable in block.variables:
            variable.trainable = "lora_kernel" in variable.path
    return _report(model, write)


def _report(model, write):
    counts = {}
    for variable in model.trainable_variables:
        group = _group(model, variable)
        counts[group] = counts.get(group, 0) + math.prod(variable.shape)
    trained = sum(counts.values())
    total = sum(math.prod(variable.shape) for variable in model.weights)
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    share = 100 * trained / total if total else 0.0
    digits = 2 if share < 99 else 4  # not 1e+02 %
    write(f"{trained:,} of {total:,} parameters train ({share:.{digits}g} %)" + (f": {parts}" if parts else ""))
    return trained


def _group(model, variable):
    """The layer that a variable is shown under: the first part of its path below the model."""
    parts = variable.path.split("/")
    return next((part for part in parts[:-1] if part != model.name), parts[-1])
