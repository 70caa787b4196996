"""The FLOPs of a model that is built, layer by layer, and of its training."""

import math

import keras

from keras_vit import layers
from keras_vit.cost.resnets import axial_stem_multiply_accumulates, resnet_multiply_accumulates
from keras_vit.cost.vision_transformers import axial_block_multiply_accumulates


def flops(model: keras.Model, table_6: bool = False) -> int:
    """The FLOPs of one image on its way forward through a model: two for each multiply-accumulate.

    They are those of matrix products and convolutions that the model computes, its head included; products with the
    zeros around an image do not count. An XLA compiler counts norms, softmax and activations too, which are a few
    percent of a Vision Transformer.

    Args:
        model: a built `keras.Model` of layers of this package, and of Keras' `Dense` and `Conv2D`.
        table_6: whether to count as the paper's Table 6 does: the last block computes all tokens, and there is no head.

    Raises:
        ValueError: the model has a layer with kernels that is not known here.
    """
    return 2 * sum(_layer_multiply_accumulates(layer, table_6) for layer in model.layers)


def _layer_multiply_accumulates(layer, table_6):
    """Those of one layer of a model, for one image."""
    if isinstance(layer, keras.Model):
        return sum(_layer_multiply_accumulates(inner, table_6) for inner in layer.layers)
    if not any("kernel" in weight.name for weight in layer.weights):
        return 0  # norms, positions, the class token
    input_shape, output_shape = layer.input.shape[1:], layer.output.shape[1:]
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
        return math.prod(output_shape[:2]) * math.prod(layer.kernel.shape)
    if isinstance(layer, keras.layers.Dense):
        return 0 if table_6 else math.prod(input_shape) * layer.units
    raise ValueError(f"The FLOPs of this layer are not known. Received: {layer.name!r}, {type(layer).__name__}")


def exaflops(forward: float, images: float) -> float:
    """The cost of training in 1e18 FLOPs, as in the paper's Table 6.

    Args:
        forward: multiply-accumulates of one image.
        images: images of all epochs together.
    """
    return 6 * forward * images / 1e18
