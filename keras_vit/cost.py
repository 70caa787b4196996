"""Counts multiply-accumulates and FLOPs of a model, forward and in training.

Layers of `keras_vit.layers` count their own products in `multiply_accumulates(input_shape)`; Keras' layers are counted
here. A multiply-accumulate is two FLOPs, and a training step costs three forward passes.
"""

import concurrent.futures
import math
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.layers import TransformerBlock
from keras_vit.layers.std_conv import conv_multiply_accumulates

# Operations and layers of Keras that multiply tensors without a kernel; they are not counted here.
_PRODUCTS = ("Matmul", "Einsum", "Dot", "Tensordot", "Inner", "Outer", "Conv", "ConvTranspose", "DotProductAttention")
_PRODUCT_LAYERS = (keras.layers.Attention, keras.layers.Dot)


def flops(model: keras.Model, table_6: bool = False) -> int:
    """Returns the FLOPs of a forward pass of one image: two for each of the `multiply_accumulates`."""
    return 2 * multiply_accumulates(model, table_6)


def multiply_accumulates(model: keras.Model, table_6: bool = False) -> int:
    """Returns the multiply-accumulates of a forward pass of one image.

    Matrix products and convolutions count, once per call of a layer. Products with the zero padding around an image do
    not count, nor do LoRA factors, which are merged for inference. XLA also counts norms, softmax and activations, a
    few percent of a Vision Transformer.

    Args:
        model: a functional or sequential `keras.Model` of layers of this package, of Keras' `Dense`, `Conv2D`,
            `DepthwiseConv2D` and layers without products, and of layers with a method
            `multiply_accumulates(input_shape)`.
        table_6: whether to count as the paper's Table 6 does: the last block computes all tokens, and the dense layers
            of the head do not count.

    Raises:
        ValueError: the model is not functional, a layer or an operation has unknown products, or the images have no
            static shape.
    """
    functional = getattr(model, "_functional", None) or model  # a `Sequential` model holds a functional one
    if not hasattr(functional, "_nodes_by_depth"):
        raise ValueError(
            "The model must be functional, or sequential and built, so that its FLOPs can be counted. "
            f"Received: {model.name!r}, {type(model).__name__}"
        )
    if any(None in tensor.shape[1:] for tensor in keras.tree.flatten(model.inputs)):
        raise ValueError(f"The shape of the images must be static. Received: inputs={model.inputs}")
    calls = [call for calls in functional._nodes_by_depth.values() for call in calls if not call.is_input]
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
            "The products of this layer are unknown: add a method `multiply_accumulates(input_shape)` to count them. "
            f"Received: {layer.name!r}, {type(layer).__name__}"
        )
    return 0  # norms, activations, positions, the class token


def _may_multiply(layer):
    if isinstance(layer, _PRODUCT_LAYERS) or type(layer).__name__ in _PRODUCTS:
        return True
    foreign = type(layer).__module__.partition(".")[0] not in ("keras", "keras_vit")
    weights = layer.weights if isinstance(layer, keras.layers.Layer) else []
    return any("kernel" in weight.name or (foreign and len(weight.shape) > 1) for weight in weights)


def exaflops(forward: float, images: float) -> float:
    """Returns Table 6's cost of training in 1e18 FLOPs; `forward` is `multiply_accumulates(model, table_6=True)`."""
    return 6 * forward * images / 1e18


def build_abstract(build: Callable[..., keras.Model], *args: Any, **kwargs: Any) -> keras.Model:
    """Builds a model with `build(*args, **kwargs)` without allocating its weights; it can be counted but not called."""

    def build_in_scope():
        with keras.StatelessScope(initialize_variables=False):
            return build(*args, **kwargs)

    # Keras keeps a list of uninitialized variables per thread and initializes them when the next scope ends.
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(build_in_scope).result()
