"""What a model costs, by formula: parameters, and the multiply-accumulates of an image on its way forward.

A multiply-accumulate is two FLOPs, and a training step takes three times a forward pass: once forward, twice backward.
The count is the one that reproduces the paper's Table 6: the Transformer's matrix products and all convolutions, the
patch embedding among them, without the head, norms, softmax and activations. It is of the whole model; one whose head
reads the class token computes less in its last block, and `flops` counts what a model computes.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit import layers
from keras_vit.architectures import BIT_UNITS
from keras_vit.layers.resnet_stem import resolve_stem, stem_output_channels, stem_output_side


def parameters(
    *,
    patch_size: int,
    num_layers: int,
    hidden_size: int,
    mlp_dim: int,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    classes: int = 0,
    classifier: str = "token",
    representation_size: int = 0,
    stem: str | None = None,
    resnet_blocks: Sequence[int] | None = None,
    num_heads: int = 1,
    position_embedding: str = "learned",
    position_embedding_at: str = "stem",
    class_token_position: bool = True,
    **others: Any,
) -> int:
    """The number of parameters of a `VisionTransformer`.

    Args:
        classes: outputs of the head; 0 for no head.
        **others: the other arguments of `VisionTransformer`, those above among them; they have no parameters.
    """
    d, m = hidden_size, mlp_dim
    blocks = resolve_stem(stem, resnet_blocks)
    (rows, columns), channels = _grid_and_channels(input_shape, patch_size, blocks)
    patches = rows * columns
    class_token = classifier.startswith("token")
    count = 0 if blocks is None else resnet_parameters(blocks, channels=input_shape[2])
    count += patch_size**2 * channels * d + d + class_token * d
    tables = num_layers if position_embedding_at == "every_layer" else 1
    if position_embedding == "learned":
        count += tables * (patches + (class_token and class_token_position)) * d
    elif position_embedding == "learned2d":
        count += tables * ((rows + columns) * d // 2 + (class_token and class_token_position) * d)
    elif position_embedding == "relative":
        count += num_layers * (2 * (patches + class_token) - 1) * (d // num_heads)
    count += num_layers * (4 * d * d + 2 * d * m + 9 * d + m) + 2 * d
    if classifier == "map":
        count += 4 * d * d + 2 * d * m + 8 * d + m  # a block with one norm and a learned query
    if representation_size:
        count += (d + 1) * representation_size
    return count + ((representation_size or d) + 1) * classes


def multiply_accumulates(
    *,
    patch_size: int,
    num_layers: int,
    hidden_size: int,
    mlp_dim: int,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    classifier: str = "token",
    position_embedding: str = "learned",
    stem: str | None = None,
    resnet_blocks: Sequence[int] | None = None,
    count_padding: bool = False,
    **others: Any,
) -> int:
    """The multiply-accumulates of one image in a `VisionTransformer`, forward, without the head.

    Args:
        count_padding: whether a convolution's products with the zeros around its images count.
        **others: the other arguments of `VisionTransformer`, which cost nothing here.
    """
    d = hidden_size
    blocks = resolve_stem(stem, resnet_blocks)
    (rows, columns), channels = _grid_and_channels(input_shape, patch_size, blocks)
    patches = rows * columns
    tokens = patches + classifier.startswith("token")
    count = patches * patch_size**2 * channels * d
    count += num_layers * (4 * tokens * d * d + 2 * tokens * tokens * d + 2 * tokens * d * mlp_dim)
    if position_embedding == "relative":
        count += num_layers * tokens * (2 * tokens - 1) * d
    if classifier == "map":
        count += 2 * (tokens + 1) * d * d + 2 * tokens * d + 2 * d * mlp_dim  # one query attends to all tokens
    if blocks is not None:
        count += resnet_multiply_accumulates(blocks, input_shape, count_padding=count_padding)
    return count


def axial_parameters(*, num_layers: int, **arguments: Any) -> int:
    """The number of parameters of an `AxialVisionTransformer`, from its arguments, as `parameters` takes them."""
    return parameters(
        num_layers=2 * num_layers, **{**arguments, "classifier": "gap", "position_embedding": "learned2d"}
    )


def axial_multiply_accumulates(
    *,
    patch_size: int,
    num_layers: int,
    hidden_size: int,
    mlp_dim: int,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    **others: Any,
) -> int:
    """The multiply-accumulates of one image in an `AxialVisionTransformer`, forward, without the head.

    Args:
        **others: the other arguments of `AxialVisionTransformer`, which cost nothing here.
    """
    d = hidden_size
    (rows, columns), channels = _grid_and_channels(input_shape, patch_size, None)
    tokens = rows * columns
    embedding = tokens * patch_size**2 * channels * d
    return embedding + num_layers * _axial_products(rows, columns, d, mlp_dim)


def _axial_products(rows, columns, d, mlp_dim):
    """Those of one `AxialTransformerBlock`: projections and MLP twice, scores and sums along each axis."""
    tokens = rows * columns
    return 2 * (4 * tokens * d * d + 2 * tokens * d * mlp_dim) + 2 * tokens * (rows + columns) * d


def bit_parameters(
    *,
    depth: int,
    width_factor: int = 1,
    width: int = 64,
    version: int = 2,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    classes: int = 0,
    **others: Any,
) -> int:
    """The number of parameters of a `BiTResNet`.

    Args:
        classes: outputs of the head; 0 for no head.
        **others: the other arguments of `BiTResNet`, which have no parameters.
    """
    width *= width_factor
    count = resnet_parameters(BIT_UNITS[depth], width, input_shape[2], pre_activation=version == 2)
    return count + (stem_output_channels(BIT_UNITS[depth], width) + 1) * classes


def bit_multiply_accumulates(
    *,
    depth: int,
    width_factor: int = 1,
    width: int = 64,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    count_padding: bool = False,
    **others: Any,
) -> int:
    """The multiply-accumulates of one image in a `BiTResNet` of either version, forward, without the head.

    Args:
        count_padding: whether a convolution's products with the zeros around its images count.
        **others: the other arguments of `BiTResNet`, which cost nothing here.
    """
    return resnet_multiply_accumulates(BIT_UNITS[depth], input_shape, width * width_factor, count_padding)


def axial_resnet_parameters(
    *,
    depth: int = 50,
    width_factor: int = 1,
    width: int = 64,
    num_heads: int = 8,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    classes: int = 0,
    **others: Any,
) -> int:
    """The number of parameters of an `AxialResNet`.

    Args:
        classes: outputs of the head; 0 for no head.
        **others: the other arguments of `AxialResNet`, which have no parameters.
    """
    blocks, width = BIT_UNITS[depth], width * width_factor
    count = resnet_parameters(blocks, width, input_shape[2]) + (stem_output_channels(blocks, width) + 1) * classes
    for (height, columns), n in _unit_sizes(blocks, input_shape, width):
        # For a convolution and its norm two attentions: a product, two norms and a table each.
        count += 2 * (2 * n * n + 2 * 2 * n + 2 * n) - 9 * n * n - 2 * n
        count += (2 * height - 1 + 2 * columns - 1) * 2 * n // num_heads
    return count


def axial_resnet_multiply_accumulates(
    *,
    depth: int = 50,
    width_factor: int = 1,
    width: int = 64,
    input_shape: tuple[int, int, int] = (224, 224, 3),
    count_padding: bool = False,
    **others: Any,
) -> int:
    """The multiply-accumulates of one image in an `AxialResNet`, forward, without the head.

    Args:
        count_padding: whether a convolution's products with the zeros around its images count.
        **others: the other arguments of `AxialResNet`, which cost nothing here.
    """
    return _axial_resnet_products(BIT_UNITS[depth], input_shape, width * width_factor, count_padding)


def _axial_resnet_products(blocks, input_shape, width, count_padding=False):
    count = resnet_multiply_accumulates(blocks, input_shape, width, count_padding, spatial=False)
    for (height, columns), n in _unit_sizes(blocks, input_shape, width):
        positions = height * columns
        # Queries, keys and values; three kinds of scores of half a head's size, and two of sums of its whole size.
        count += 2 * positions * 2 * n * n + positions * (height + columns) * (3 * n // 2 + 2 * n)
    return count


def _unit_sizes(blocks, input_shape, width):
    """Of each unit: `(rows, columns)` of what it reads, and its inner channels."""
    sides = [-(-side // 4) for side in input_shape[:2]]
    for _, n, strides in _units(blocks, width):
        yield tuple(sides), n
        sides = [-(-side // strides) for side in sides]


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
        return _axial_products(*layer.grid, input_shape[1], layer.row.mlp_dim)
    if isinstance(layer, layers.AttentionPooling):
        tokens, d = input_shape
        return 2 * (tokens + 1) * d * d + 2 * tokens * d + 2 * d * layer.mlp_dim
    if isinstance(layer, layers.AxialResNetStem):
        return _axial_resnet_products(layer.blocks, input_shape, layer.width)
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


def resnet_parameters(blocks: Sequence[int], width: int = 64, channels: int = 3, pre_activation: bool = False) -> int:
    """The parameters of `ResNetStem(blocks, width)`, or of `PreActivationResNet(blocks, width)`."""
    count = 7 * 7 * channels * width  # convolutions, then scales and offsets of the norms
    norms = stem_output_channels(blocks, width) if pre_activation else width
    for inputs, n, strides in _units(blocks, width):
        projected = inputs != 4 * n or strides != 1
        count += inputs * n + 9 * n * n + 4 * n * n + projected * inputs * 4 * n
        norms += inputs + n + n if pre_activation else n + n + 4 * n + projected * 4 * n
    return count + 2 * norms


def resnet_multiply_accumulates(
    blocks: Sequence[int],
    input_shape: tuple[int, int, int],
    width: int = 64,
    count_padding: bool = False,
    spatial: bool = True,
) -> int:
    """The multiply-accumulates of one image in a ResNet, of either version; with its 3x3 convolutions or without."""
    *sides, channels = input_shape

    def conv(kernel_size, strides, inputs, outputs):
        taps = [_taps(side, kernel_size, strides, count_padding) for side in sides]
        return taps[0] * taps[1] * inputs * outputs

    def strided(strides):
        return [-(-side // strides) for side in sides]

    count = conv(7, 2, channels, width)
    sides = strided(4)  # the convolution and the pool
    for inputs, n, strides in _units(blocks, width):
        count += conv(1, 1, inputs, n) + spatial * conv(3, strides, n, n)
        if inputs != 4 * n or strides != 1:
            count += conv(1, strides, inputs, 4 * n)
        sides = strided(strides)
        count += conv(1, 1, n, 4 * n)
    return count


def _units(blocks, width):
    """Of each unit: its input channels, its inner channels and its stride."""
    inputs = width
    for stage, units in enumerate(blocks):
        n = width * 2**stage
        for unit in range(units):
            yield inputs, n, 2 if stage and not unit else 1
            inputs = 4 * n


def _taps(side, kernel_size, strides, count_padding):
    """Products along one axis of a convolution with "same" padding: over all outputs, those inside the image.

    "Symmetric" padding has the odd zero on the other side, and the same number of products.
    """
    outputs = -(-side // strides)
    if count_padding:
        return outputs * kernel_size
    before = max((outputs - 1) * strides + kernel_size - side, 0) // 2
    starts = [output * strides - before for output in range(outputs)]
    return sum(min(start + kernel_size, side) - max(start, 0) for start in starts)


def _grid_and_channels(input_shape, patch_size, blocks):
    """`(rows, columns)` of the patches that the Transformer sees, and of how many channels they are."""
    height, width, channels = input_shape
    if blocks is not None:
        height, width = (stem_output_side(side, blocks) for side in (height, width))
        channels = stem_output_channels(blocks)
    return (height // patch_size, width // patch_size), channels
