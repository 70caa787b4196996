"""The pre-activation ResNet of the published BiT weights."""

from collections.abc import Sequence
from typing import Any

from keras import KerasTensor, ops

from keras_vit.layers.base import serializable
from keras_vit.layers.resnet_stem import BottleneckUnit, ResNetStem
from keras_vit.layers.std_conv import (
    StdConv2D,
    build_in_turn,
    group_norm,
    pad_sides,
    strided_shape,
)
from keras_vit.layers.validation import check_choice, check_rank


@serializable
class PreActivationResNet(ResNetStem):
    """A pre-activation ResNet (V2) without its head.

    Maps images `(B, H, W, C)` to non-negative features `(B, h, w, F)`.

    The root is a 7x7 convolution and a 3x3 max-pool, each with stride 2. The root has no norm or
    activation. In every unit, norm and activation come before each convolution. A final GroupNorm
    and ReLU follow the last unit. The height and width are divided by the total stride and rounded
    up. For the post-activation form (V1), see `ResNetStem`.

    Args:
        blocks: number of units in each stage, such as `(3, 4, 6, 3)`.
        width: channels of the root, a multiple of 32. The last of n stages has
            `4 * width * 2**(n-1)` output channels.
        pool_padding: padding of the root's max-pool, "zeros" (as the published weights were
            trained) or "minus_infinity" (as in big_vision). The results differ only if features at
            the border are negative.

    Raises:
        ValueError: an argument is out of range, or the images do not have rank 4.

    Reference: Kolesnikov et al., "Big Transfer" (BiT). As in the authors' code, GroupNorm has
        epsilon 1e-5, weight standardization adds 1e-10 to the variance, and padding is symmetric.
    """

    def __init__(
        self,
        blocks: Sequence[int] = (),
        width: int = 64,
        pool_padding: str = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(blocks, width, **kwargs)
        check_choice("pool_padding", pool_padding, ("zeros", "minus_infinity"))
        self._keep_arguments({"pool_padding": pool_padding})

    def build(self, input_shape: tuple) -> None:
        check_rank("PreActivationResNet", input_shape, "B, H, W, C")
        policy = self.dtype_policy
        self.conv_root = _conv(self.width, 7, 2, "conv_root", policy)
        self.units = self._make_units(PreActivationUnit, "block{}_unit{:02d}")
        self.norm_pre_head = group_norm("norm-pre-head", epsilon=1e-5, dtype=policy)
        self.conv_root.build(input_shape)
        build_in_turn([*self.units, self.norm_pre_head], strided_shape(input_shape, 4, self.width))

    def call(self, images: KerasTensor) -> KerasTensor:
        x = self.conv_root(images)  # (B, ⌈H/2⌉, ⌈W/2⌉, width)
        x = pad_sides(x, 1, 0.0 if self.pool_padding == "zeros" else float("-inf"))
        # The pool returns (B, ⌈H/4⌉, ⌈W/4⌉, width).
        x = ops.max_pool(x, 3, strides=2, padding="valid", data_format="channels_last")
        for unit in self.units:
            x = unit(x)
        return ops.relu(self.norm_pre_head(x))


@serializable
class PreActivationUnit(BottleneckUnit):
    """A pre-activation bottleneck unit.

    Maps `(B, H, W, C)` to `(B, ⌈H/strides⌉, ⌈W/strides⌉, 4 * channels)`.
    """

    def build(self, input_shape):
        policy = self.dtype_policy
        n = self.channels
        self.gn1, self.gn2, self.gn3 = (
            group_norm(f"gn{i}", epsilon=1e-5, dtype=policy) for i in (1, 2, 3)
        )
        self.conv1 = _conv(n, 1, 1, "conv1", policy)
        self.conv2 = _conv(n, 3, self.strides, "conv2", policy)
        self.conv3 = _conv(4 * n, 1, 1, "conv3", policy)
        build_in_turn(
            (self.gn1, self.conv1, self.gn2, self.conv2, self.gn3, self.conv3), input_shape
        )
        self.conv_proj = None
        if input_shape[-1] != 4 * n or self.strides != 1:
            self.conv_proj = _conv(4 * n, 1, self.strides, "conv_proj", policy)
            self.conv_proj.build(input_shape)

    def call(self, x):
        activated = ops.relu(self.gn1(x))
        shortcut = x if self.conv_proj is None else self.conv_proj(activated)
        x = self.conv1(activated)
        x = self.conv2(ops.relu(self.gn2(x)))
        return shortcut + self.conv3(ops.relu(self.gn3(x)))


def _conv(filters, kernel_size, strides, name, policy):
    return StdConv2D(
        filters,
        kernel_size,
        strides=strides,
        padding="symmetric",
        variance_epsilon=1e-10,
        dtype=policy,
        name=name,
    )
