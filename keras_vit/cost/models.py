"""The FLOPs of a model that is built, layer by layer, and of its training."""

import math

import keras

from keras_vit import layers
from keras_vit.cost.resnets import axial_stem_multiply_accumulates, resnet_multiply_accumulates
from keras_vit.cost.vision_transformers import axial_block_multiply_accumulates
from keras_vit.cost.windows import window_products
from keras_vit.models.graph import calls_of

# Operations and layers of Keras with products but without kernels, whose cost is not known here.
_PRODUCTS = ("Matmul", "Einsum", "Dot", "Tensordot", "Inner", "Outer", "Conv", "ConvTranspose", "DotProductAttention")
_PRODUCT_LAYERS = (keras.layers.Attention, keras.layers.Dot)


def flops(model: keras.Model, table_6: bool = False) -> int:
    """The FLOPs of one image on its way forward through a model: two for each multiply-accumulate.

    They are those of matrix products and convolutions that the model computes, its head included, of a layer that is
    called several times as often as it is called; products with the zeros around an image do not count, nor do the
    factors of LoRA, which are merged for use. An XLA compiler counts norms, softmax and activations too, which are a
    few percent of a Vision Transformer.

    Args:
        model: a functional or sequential `keras.Model` of layers of this package, and of Keras' `Dense`, `Conv2D` and
            layers without products. The shape of its images is known.
        table_6: whether to count as the paper's Table 6 does: the last block computes all tokens, and there is no head.

    Raises:
        ValueError: the model is not functional, or has a layer or an operation with products that is not known here, or
            images whose shape is not known.
    """
    calls = calls_of(model)
    if calls is None:
        raise ValueError(
            "The FLOPs of a model are counted by its graph, so that it must be functional, or sequential and built. "
            f"Received: {model.name!r}, {type(model).__name__}"
        )
    if any(None in tensor.shape[1:] for tensor in keras.tree.flatten(model.inputs)):
        raise ValueError(f"The shape of the images must be known. Received: inputs={model.inputs}")
    return sum(_call_flops(call, table_6) for call in calls)


def _call_flops(call, table_6):
    """The FLOPs of a call of a layer, for one image."""
    layer = call.operation
    if isinstance(layer, keras.Model):
        return flops(layer, table_6)
    input_shape, output_shape = (
        tuple(tensors[0].shape[1:]) if tensors else () for tensors in (call.input_tensors, call.output_tensors)
    )
    return 2 * _multiply_accumulates(layer, input_shape, output_shape, table_6)


def _multiply_accumulates(layer, input_shape, output_shape, table_6):
    """Those of a layer, or of an operation, of the shapes of one example."""
    if isinstance(layer, layers.TransformerBlock):
        tokens, d = input_shape
        outputs = tokens if table_6 else output_shape[0]
        distances = outputs * (2 * tokens - 1) * d if layer.relative_positions else 0
        return distances + 2 * (tokens + outputs) * d * d + 2 * outputs * tokens * d + 2 * outputs * d * layer.mlp_dim
    if isinstance(layer, layers.AxialTransformerBlock):
        return axial_block_multiply_accumulates(*layer.grid, input_shape[1], layer.row.mlp_dim)
    if isinstance(layer, layers.AttentionPooling):
        tokens, d = input_shape
        return 2 * (tokens + 1) * d * d + 2 * tokens * d + 2 * d * layer.mlp_dim
    if isinstance(layer, layers.AxialResNetStem):
        return axial_stem_multiply_accumulates(layer.blocks, input_shape, layer.width)
    if isinstance(layer, layers.ResNetStem | layers.PreActivationResNet):
        return resnet_multiply_accumulates(layer.blocks, input_shape, layer.width)
    if isinstance(layer, layers.PatchEncoder):
        return math.prod(input_shape) * output_shape[-1]
    if isinstance(layer, keras.layers.Conv2D):
        return _conv_multiply_accumulates(layer, input_shape, output_shape)
    if isinstance(layer, keras.layers.Dense):
        return 0 if table_6 else math.prod(input_shape) * layer.units
    if _may_multiply(layer):
        raise ValueError(f"The FLOPs of this layer are not known. Received: {layer.name!r}, {type(layer).__name__}")
    return 0  # norms, positions, the class token


def _may_multiply(layer):
    """Whether an operation or a layer that is not known by its class may have products."""
    if isinstance(layer, _PRODUCT_LAYERS) or type(layer).__name__ in _PRODUCTS:
        return True
    foreign = type(layer).__module__.partition(".")[0] not in ("keras", "keras_vit")
    weights = layer.weights if isinstance(layer, keras.layers.Layer) else []
    return any("kernel" in weight.name or (foreign and len(weight.shape) > 1) for weight in weights)


def _conv_multiply_accumulates(layer, input_shape, output_shape):
    """Those of a two-dimensional convolution, without the products with the zeros around its images."""
    axes = (1, 2) if layer.data_format == "channels_first" else (0, 1)
    count = math.prod(layer.kernel.shape[2:])
    for i, axis in enumerate(axes):
        side, outputs = input_shape[axis], output_shape[axis]
        taps, stride, dilation = layer.kernel_size[i], layer.strides[i], layer.dilation_rate[i]
        zeros = (outputs - 1) * stride + (taps - 1) * dilation + 1 - side
        before = max(zeros, 0) // 2 if layer.padding == "same" else 0
        count *= window_products(side, taps, outputs, stride, before, tap_dilation=dilation)
    return count


def exaflops(forward: float, images: float) -> float:
    """The cost of training in 1e18 FLOPs, as in the paper's Table 6.

    Args:
        forward: multiply-accumulates of one image.
        images: images of all epochs together.
    """
    return 6 * forward * images / 1e18
