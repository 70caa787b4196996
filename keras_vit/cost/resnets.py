"""Parameters and multiply-accumulates of ResNets by formula: BiT, of both versions, axial ones, and hybrids' stems."""

from collections.abc import Sequence
from typing import Any

from keras_vit.architectures import BIT_UNITS
from keras_vit.cost.windows import window_products
from keras_vit.layers.resnet_stem import stem_output_channels


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
    return axial_stem_multiply_accumulates(BIT_UNITS[depth], input_shape, width * width_factor, count_padding)


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


def axial_stem_multiply_accumulates(blocks, input_shape, width, count_padding=False):
    """Those of one image in an `AxialResNetStem`."""
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
    return window_products(side, kernel_size, outputs, strides, before)
