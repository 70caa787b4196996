"""The weight-standardized convolution and the GroupNorm of the ResNets."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit.layers.validation import check_choice


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(keras.layers.Layer):
    """A convolution without bias whose kernel is standardized: `(B, H, W, C)` to `(B, H/s, W/s, filters)`.

    Padding "same" puts an odd zero at the bottom or right, "symmetric" pads all sides alike. `variance_epsilon` is
    added under the root; None divides by the deviation plus 1e-5. Arithmetic on the kernel is float32 under any policy.
    Reference: Qiao et al., "Weight Standardization"; the reference's StdConv, or BiT's with "symmetric" and 1e-10.
    """

    def __init__(self, filters, kernel_size, strides=1, padding="same", variance_epsilon=None, **kwargs):
        super().__init__(**kwargs)
        check_choice("padding", padding, ("same", "symmetric"))
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = strides
        self.padding = padding
        self.variance_epsilon = variance_epsilon

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.kernel_size, input_shape[-1], self.filters),
            initializer="lecun_normal",
            autocast=False,
        )
        self.built = True

    def call(self, x):
        kernel = ops.convert_to_tensor(self.kernel)
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2))
        if self.variance_epsilon is None:
            kernel = kernel / (ops.std(kernel, axis=(0, 1, 2)) + 1e-5)
        else:
            kernel = kernel / ops.sqrt(ops.var(kernel, axis=(0, 1, 2)) + self.variance_epsilon)
        padding = self.padding
        if padding == "symmetric":
            x = pad_sides(x, (self.kernel_size - 1) // 2)
            padding = "valid"
        return ops.conv(
            x, ops.cast(kernel, self.compute_dtype), strides=self.strides, padding=padding, data_format="channels_last"
        )

    def compute_output_shape(self, input_shape):
        batch, *sides, _ = input_shape
        sides = [None if side is None else -(-side // self.strides) for side in sides]
        return (batch, *sides, self.filters)

    def multiply_accumulates(self, input_shape):
        """Multiply-accumulates of one example, without those with the zeros around it; the shape is `(B, H, W, C)`."""
        return conv_multiply_accumulates(self, input_shape, (self.kernel_size,) * 2, (self.strides,) * 2)

    def get_config(self):
        names = ("filters", "kernel_size", "strides", "padding", "variance_epsilon")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def group_norm(name, epsilon=1e-6, **kwargs):
    """The GroupNorm of the reference: 32 groups of neighboring channels, epsilon 1e-6 (BiT's: 1e-5)."""
    return keras.layers.GroupNormalization(32, epsilon=epsilon, name=name, **kwargs)


def pad_sides(x, width, value=0.0):
    """Pads images `(B, H, W, C)` with `width` pixels of `value` on all four sides."""
    if not width:
        return x
    return ops.pad(x, ((0, 0), (width, width), (width, width), (0, 0)), constant_values=value)


def conv_multiply_accumulates(layer, input_shape, kernel_size, strides, dilation=(1, 1), axes=(1, 2)):
    """Multiply-accumulates of a convolution of one image, without those with the zeros around it."""
    output_shape, count = layer.compute_output_shape(input_shape), math.prod(layer.kernel.shape[2:])
    for axis, taps, stride, apart in zip(axes, kernel_size, strides, dilation, strict=True):
        side, outputs = input_shape[axis], output_shape[axis]
        zeros = max((outputs - 1) * stride + (taps - 1) * apart + 1 - side, 0)  # as `padding="same"` adds them
        before = {"same": zeros // 2, "symmetric": taps // 2}.get(layer.padding, 0)
        first = np.arange(outputs)[:, None] * stride - before + np.arange(taps) * apart  # the pixel of output and tap
        count *= int(((first >= 0) & (first < side)).sum())
    return count


def count_in_turn(layers, shape):
    """Multiply-accumulates of layers, each on the output of the one before."""
    count = 0
    for layer in layers:
        count += layer.multiply_accumulates(shape) if hasattr(layer, "multiply_accumulates") else 0
        shape = layer.compute_output_shape(shape)
    return count


def build_in_turn(layers, shape):
    """Builds each layer on the output shape of the one before; returns the last output shape."""
    for layer in layers:
        layer.build(shape)
        shape = layer.compute_output_shape(shape)
    return shape
