"""The ResNet stem of hybrid models."""

from collections.abc import Sequence
from typing import Any

from keras import KerasTensor, ops

from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.std_conv import (
    StdConv2D,
    build_in_turn,
    count_in_turn,
    group_norm,
    strided_shape,
)
from keras_vit.layers.validation import check_positive_int, check_positive_ints, check_rank


@serializable
class ResNetStem(BaseLayer):
    """A ResNet (V1) without its head.

    Maps images `(B, H, W, C)` to non-negative features `(B, h, w, F)`.

    The root is a 7x7 convolution and a 3x3 max-pool, each with stride 2. Stages of bottleneck units
    follow. Every stage except the first has stride 2. The height and width are divided by the total
    stride and rounded up. Convolutions are weight-standardized, have no bias, and are followed by a
    GroupNorm with 32 groups.

    Args:
        blocks: number of units in each stage, such as `(3, 4, 9)`; `()` for only the root.
        width: channels of the root, a multiple of 32. Stage i (from 1) has `4 * width * 2**(i-1)`
            output channels.

    Raises:
        ValueError: a number of units or the width is out of range, or the images do not have rank
            4.

    Reference: paper section 4.1 "Model Variants"; matches the hybrids of `vit_jax` (GroupNorm
        with epsilon 1e-6, weight standardization with 1e-5 added to the standard deviation).
    """

    def __init__(self, blocks: Sequence[int] = (), width: int = 64, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_units("blocks", blocks)
        check_width(width)
        blocks = tuple(blocks)
        self._keep_arguments(locals())

    @property
    def stride(self) -> int:
        """Stride of the features in pixels, along both axes."""
        return stem_stride_of(self.blocks)

    def build(self, input_shape: tuple) -> None:
        check_rank("ResNetStem", input_shape, "B, H, W, C")
        policy = self.dtype_policy
        self.conv_root = StdConv2D(self.width, 7, strides=2, dtype=policy, name="conv_root")
        self.gn_root = group_norm("gn_root", dtype=policy)
        self.units = self._make_units(BottleneckUnit, "block{}_unit{}")
        build_in_turn((self.conv_root, self.gn_root), input_shape)
        build_in_turn(self.units, strided_shape(input_shape, 4, self.width))

    def _make_units(self, unit_class, name_format):
        """Creates the units of all stages.

        Each stage after the first starts with a unit of stride 2. `name_format` has two fields, for
        the numbers of the stage and of the unit in the stage, both from 1.
        """
        return [
            unit_class(
                self.width * 2**stage,
                strides=2 if stage > 0 and unit == 0 else 1,
                dtype=self.dtype_policy,
                name=name_format.format(stage + 1, unit + 1),
            )
            for stage, units in enumerate(self.blocks)
            for unit in range(units)
        ]

    def call(self, images: KerasTensor) -> KerasTensor:
        x = ops.relu(self.gn_root(self.conv_root(images)))  # (B, ⌈H/2⌉, ⌈W/2⌉, width)
        # The pool returns (B, ⌈H/4⌉, ⌈W/4⌉, width).
        x = ops.max_pool(x, 3, strides=2, padding="same", data_format="channels_last")
        for unit in self.units:
            x = unit(x)
        return x

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        channels = 4 * self.width * 2 ** (len(self.blocks) - 1) if self.blocks else self.width
        return strided_shape(input_shape, self.stride, channels)

    def multiply_accumulates(self, input_shape: tuple) -> int:
        """Returns the multiply-accumulates of one example for the shape `(B, H, W, C)`."""
        pooled = strided_shape(input_shape, 4, self.width)
        return self.conv_root.multiply_accumulates(input_shape) + count_in_turn(self.units, pooled)


@serializable
class BottleneckUnit(BaseLayer):
    """A post-activation bottleneck unit.

    Maps `(B, H, W, C)` to `(B, ⌈H/strides⌉, ⌈W/strides⌉, 4 * channels)`.
    """

    def __init__(self, channels, strides=1, **kwargs):
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def build(self, input_shape):
        n = self.channels
        policy = {"dtype": self.dtype_policy}
        self.conv1 = StdConv2D(n, 1, name="conv1", **policy)
        self.gn1 = group_norm("gn1", **policy)
        self.conv2 = StdConv2D(n, 3, strides=self.strides, name="conv2", **policy)
        self.gn2 = group_norm("gn2", **policy)
        self.conv3 = StdConv2D(4 * n, 1, name="conv3", **policy)
        self.gn3 = group_norm("gn3", gamma_initializer="zeros", **policy)
        build_in_turn(
            (self.conv1, self.gn1, self.conv2, self.gn2, self.conv3, self.gn3), input_shape
        )
        self.conv_proj = self.gn_proj = None
        if input_shape[-1] != 4 * n or self.strides != 1:
            self.conv_proj = StdConv2D(4 * n, 1, strides=self.strides, name="conv_proj", **policy)
            self.gn_proj = group_norm("gn_proj", **policy)
            build_in_turn((self.conv_proj, self.gn_proj), input_shape)

    def call(self, x):
        shortcut = x if self.conv_proj is None else self.gn_proj(self.conv_proj(x))
        x = ops.relu(self.gn1(self.conv1(x)))
        x = ops.relu(self.gn2(self.conv2(x)))
        return ops.relu(shortcut + self.gn3(self.conv3(x)))

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, self.strides, 4 * self.channels)

    def multiply_accumulates(self, input_shape):
        """Returns the multiply-accumulates of one example for the shape `(B, H, W, C)`."""
        count = count_in_turn((self.conv1, self.conv2, self.conv3), input_shape)
        return count + (self.conv_proj.multiply_accumulates(input_shape) if self.conv_proj else 0)


def check_units(name, units):
    """Raises a `ValueError` unless `units`, an argument `name`, can be the `blocks` of a stem."""
    check_positive_ints(name, units, "a tuple of positive integers, such as (3, 4, 9)")


def check_width(width):
    """Raises a `ValueError` unless `width` is a valid argument of `ResNetStem`."""
    check_positive_int("width", width)
    if width % 32:
        raise ValueError(f"`width` must be a multiple of 32. Received: width={width}")


def stem_stride_of(blocks):
    """Returns the total stride of `ResNetStem(blocks)`, or 1 for None, no stem."""
    return 1 if blocks is None else 4 * 2 ** max(len(blocks) - 1, 0)
