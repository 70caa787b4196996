"""Counts the multiply-accumulates and FLOPs of a model's forward pass and training.

The layers of `keras_vit.layers` count their own multiply-accumulates in
`multiply_accumulates(input_shape)`; this module counts Keras layers. A multiply-accumulate counts
as two FLOPs, and a training step counts as three forward passes.
"""

import concurrent.futures
import math
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.layers import TransformerBlock
from keras_vit.layers.std_conv import conv_multiply_accumulates

# Keras operations that compute matrix products or convolutions of their inputs. Counting them
# raises an error, because their cost is unknown.
_PRODUCTS = (
    "Matmul",
    "Einsum",
    "Dot",
    "Tensordot",
    "Inner",
    "Outer",
    "Vdot",
    "Conv",
    "ConvTranspose",
    "DepthwiseConv",
    "SeparableConv",
    "DotProductAttention",
)


def flops(model: keras.Model, table_6: bool = False) -> int:
    """Returns the FLOPs of the forward pass for one image: twice the result of
    `multiply_accumulates`."""
    return 2 * multiply_accumulates(model, table_6)


def multiply_accumulates(model: keras.Model, table_6: bool = False) -> int:
    """Returns the number of multiply-accumulates in the forward pass for one image.

    Counts matrix products and convolutions, once per call of a layer. Multiplications by zero
    padding are not counted. LoRA factors are not counted either, because they are merged for
    inference. XLA's cost analysis also counts norms, softmax and activations, which are a few
    percent of the total in a Vision Transformer.

    Args:
        model: a functional or sequential `keras.Model`. It may contain other models, layers of this
            package, Keras' `Dense`, `Conv2D` and `DepthwiseConv2D`, layers without matrix products,
            and any layer with a method `multiply_accumulates(input_shape)`.
        table_6: if True, counts as in the paper's Table 6: the last block computes all tokens, and
            the dense layers of the head are not counted.

    Raises:
        ValueError: the model is neither functional nor a built sequential model, the
            multiply-accumulates of a layer or operation are unknown, or the shape of the images is
            not static.
    """
    # A `Sequential` model wraps a functional model.
    functional = getattr(model, "_functional", None) or model
    if not hasattr(functional, "_nodes_by_depth"):
        raise ValueError(
            "To count its FLOPs, `model` must be a functional model or a built sequential model. "
            f"Received: {model.name!r}, {type(model).__name__}"
        )
    if any(None in tensor.shape[1:] for tensor in keras.tree.flatten(model.inputs)):
        raise ValueError(
            f"`model` must have inputs of static shape. Received: inputs={model.inputs}"
        )
    calls = [
        call for calls in functional._nodes_by_depth.values() for call in calls if not call.is_input
    ]
    return sum(_count(call.operation, call.input_tensors[0].shape, table_6) for call in calls)


def _count(layer, input_shape, table_6):
    if isinstance(layer, keras.Model):
        return multiply_accumulates(layer, table_6)
    if isinstance(layer, TransformerBlock):
        return layer.multiply_accumulates(input_shape, all_tokens=table_6)
    if hasattr(layer, "multiply_accumulates"):
        return layer.multiply_accumulates(input_shape)
    if isinstance(layer, keras.layers.Conv2D | keras.layers.DepthwiseConv2D):
        axes = (2, 3) if layer.data_format == "channels_first" else (1, 2)
        sizes = layer.kernel_size, layer.strides, layer.dilation_rate
        return conv_multiply_accumulates(layer, input_shape, *sizes, axes)
    if isinstance(layer, keras.layers.Dense):
        return 0 if table_6 else math.prod(input_shape[1:]) * layer.units
    if _may_multiply(layer):
        raise ValueError(
            "A layer that multiplies tensors must have a method "
            f"`multiply_accumulates(input_shape)` to be counted. Received: {layer.name!r}, "
            f"{type(layer).__name__}"
        )
    return 0  # for example norms, activations, position embeddings and the class token


def _may_multiply(layer):
    if isinstance(layer, keras.layers.Attention) or type(layer).__name__ in _PRODUCTS:
        return True
    foreign = type(layer).__module__.partition(".")[0] not in ("keras", "keras_vit")
    weights = layer.weights if isinstance(layer, keras.layers.Layer) else []
    return any("kernel" in weight.name or (foreign and len(weight.shape) > 1) for weight in weights)


def exaflops(forward: float, images: float) -> float:
    """Returns the cost of training in exaFLOPs (1e18 FLOPs), as in the paper's Table 6.

    Args:
        forward: `multiply_accumulates(model, table_6=True)`.
        images: number of training images, summed over all epochs.
    """
    return 6 * forward * images / 1e18


def build_abstract(build: Callable[..., keras.Model], *args: Any, **kwargs: Any) -> keras.Model:
    """Calls `build(*args, **kwargs)` without allocating the weights; the model can only be used to
    count its cost."""

    def build_in_scope():
        with keras.StatelessScope(initialize_variables=False):
            return build(*args, **kwargs)

    # Keras initializes pending variables at the end of a thread's next scope, so use a thread
    # without a next scope.
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(build_in_scope).result()
