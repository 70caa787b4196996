"""The weight-standardized convolution and the GroupNorm of the ResNets."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(keras.layers.Layer):
    """A convolution without bias whose kernel is standardized: `(B, H, W, C)` to `(B, H/s, W/s, filters)`.

    For each output channel the kernel is shifted and scaled to mean 0 and deviation 1. The stored kernel is
    the raw one; the arithmetic on it is float32 under any policy, and gradients flow through it.

    Args:
        filters: number of output channels.
        kernel_size: side of the square kernel, odd.
        strides: in both directions.
        padding: "same" (an odd row or column of zeros goes to the bottom or the right) or "symmetric"
            (`(kernel_size - 1) / 2` zeros on every side). They differ where the stride is 2 and the side even.
        variance_epsilon: the number added to the variance under the root; None divides by the deviation plus 1e-5.

    Reference: Qiao et al., "Weight Standardization"; the reference's StdConv (models_resnet) by default, BiT's with
    "symmetric" and 1e-10.
    """

    def __init__(self, filters, kernel_size, strides=1, padding="same", variance_epsilon=None, **kwargs):
        super().__init__(**kwargs)
        if padding not in ("same", "symmetric"):
            raise ValueError(f'`padding` must be "same" or "symmetric". Received: padding={padding!r}')
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
            x,
            ops.cast(kernel, self.compute_dtype),
            strides=self.strides,
            padding=padding,
            data_format="channels_last",
        )

    def compute_output_shape(self, input_shape):
        batch, *sides, _ = input_shape
        sides = [None if side is None else -(-side // self.strides) for side in sides]
        return (batch, *sides, self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "variance_epsilon": self.variance_epsilon,
        }


def group_norm(name, epsilon=1e-6, **kwargs):
    """The GroupNorm of the reference: 32 groups of neighboring channels, epsilon 1e-6 (BiT's: 1e-5)."""
    return keras.layers.GroupNormalization(32, epsilon=epsilon, name=name, **kwargs)


def pad_sides(x, width, value=0.0):
    """Pads images `(B, H, W, C)` with `width` pixels of `value` on all four sides."""
    if not width:
        return x
    return ops.pad(x, ((0, 0), (width, width), (width, width), (0, 0)), constant_values=value)


def build_in_turn(layers, shape):
    """Builds each layer on the output shape of the one before; returns the last output shape."""
    for layer in layers:
        layer.build(shape)
        shape = layer.compute_output_shape(shape)
    return shape
