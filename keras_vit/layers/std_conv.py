"""Weight-standardized convolution, and helpers for the convolutions of ResNets and their cost."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit.layers.base import BaseLayer, serializable


@serializable
class StdConv2D(BaseLayer):
    """A convolution with a weight-standardized kernel and no bias.

    Maps `(B, H, W, C)` to `(B, ⌈H/s⌉, ⌈W/s⌉, filters)`. The kernel is standardized in float32.

    Args:
        filters: number of output channels.
        kernel_size: side of the kernel in pixels, an odd number.
        strides: s, the stride along both axes.
        padding: "symmetric" pads all sides equally. "same" pads the bottom and right by one pixel
            more than the top and left if the total padding is odd.
        variance_epsilon: number added to the variance of the kernel; None adds 1e-5 to the standard
            deviation instead.

    Reference: Qiao et al., "Weight Standardization". The defaults match `StdConv` in `vit_jax`;
        `padding="symmetric"` and `variance_epsilon=1e-10` match big_vision's `bit_paper.py`.
    """

    def __init__(
        self, filters, kernel_size, strides=1, padding="same", variance_epsilon=None, **kwargs
    ):
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer="lecun_normal",
            autocast=False,
        )

    def call(self, x):
        kernel = ops.convert_to_tensor(self.kernel)
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2))
        if self.variance_epsilon is None:
            kernel = kernel / (ops.std(kernel, axis=(0, 1, 2)) + 1e-5)
        else:
            kernel = kernel / ops.sqrt(ops.var(kernel, axis=(0, 1, 2)) + self.variance_epsilon)
        kernel = ops.cast(kernel, self.compute_dtype)
        padding = self.padding
        if padding == "symmetric":
            x = pad_sides(x, (self.kernel_size - 1) // 2)
            padding = "valid"
        return ops.conv(x, kernel, self.strides, padding, "channels_last")

    def compute_output_shape(self, input_shape):
        return strided_shape(input_shape, self.strides, self.filters)

    def multiply_accumulates(self, input_shape):
        """Returns the multiply-accumulates of one example for the shape `(B, H, W, C)`.

        Products with padding do not count.
        """
        sizes = (self.kernel_size,) * 2, (self.strides,) * 2
        return conv_multiply_accumulates(self, input_shape, *sizes)


def group_norm(name, epsilon=1e-6, **kwargs):
    """Builds a GroupNorm with 32 groups of neighboring channels."""
    return keras.layers.GroupNormalization(32, epsilon=epsilon, name=name, **kwargs)


def strided_shape(input_shape, strides, channels):
    """Returns the output shape `(B, ⌈H/strides⌉, ⌈W/strides⌉, channels)` for `(B, H, W, C)`."""
    batch, *sides, _ = input_shape
    return (batch, *(None if side is None else -(-side // strides) for side in sides), channels)


def pad_sides(x, width, value=0.0):
    """Pads images `(B, H, W, C)` with `width` pixels of `value` on all four sides."""
    return ops.pad(x, ((0, 0), (width, width), (width, width), (0, 0)), constant_values=value)


def conv_multiply_accumulates(
    layer, input_shape, kernel_size, strides, dilation=(1, 1), axes=(1, 2)
):
    """Returns the multiply-accumulates of a convolution for one image.

    Products with padding do not count.
    """
    output_shape = layer.compute_output_shape(input_shape)
    count = math.prod(layer.kernel.shape[2:])
    for axis, taps, stride, apart in zip(axes, kernel_size, strides, dilation, strict=True):
        side = input_shape[axis]
        outputs = output_shape[axis]
        # Total padding for `padding="same"`.
        zeros = max((outputs - 1) * stride + (taps - 1) * apart + 1 - side, 0)
        before = {"same": zeros // 2, "symmetric": taps // 2}.get(layer.padding, 0)
        # Index of the input pixel for each output pixel and kernel tap. Indices outside the image
        # are padding.
        positions = np.arange(outputs)[:, None] * stride - before + np.arange(taps) * apart
        count *= int(((positions >= 0) & (positions < side)).sum())
    return count


def count_in_turn(layers, shape):
    """Returns the multiply-accumulates of a chain of layers."""
    count = 0
    for layer in layers:
        count += layer.multiply_accumulates(shape)
        shape = layer.compute_output_shape(shape)
    return count


def build_in_turn(layers, shape):
    """Builds a chain of layers and returns its output shape."""
    for layer in layers:
        layer.build(shape)
        shape = layer.compute_output_shape(shape)
    return shape
