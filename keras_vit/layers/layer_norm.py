"""LayerNorm of the tokens in Transformer blocks."""

import keras
from keras import ops

from keras_vit.layers import compilation
from keras_vit.layers.base import serializable


@serializable
class LayerNormalization(keras.layers.LayerNormalization):
    """A LayerNorm over the last axis, in the form that is fast where it is compiled for.

    Keras' layer reads `x` a second time for the variance. On TPUs, the variance is
    `mean(x**2) - mean(x)**2` instead, as in Flax and the reference, so that XLA computes both means
    together with the operation that produces `x`. In float32 its error matters only if the mean is
    about 1,000 times as large as the standard deviation. On JAX for CPUs, the tokens are flat.

    `.keras` files name the weights after the class, so its name must not change.
    """

    def call(self, inputs):
        if compilation.platform() == "cpu" and keras.backend.backend() == "jax":
            # Otherwise, XLA sums the gradients of all later blocks again in each block, because
            # it copies each addition into its consumers if one of them is a reshape.
            flat = ops.reshape(inputs, (-1, inputs.shape[-1]))
            return ops.reshape(super().call(flat), inputs.shape)
        if compilation.platform() != "tpu":
            return super().call(inputs)
        x = ops.cast(inputs, "float32")
        mean = ops.mean(x, axis=-1, keepdims=True)
        mean_square = ops.mean(x * x, axis=-1, keepdims=True)
        variance = ops.maximum(mean_square - mean * mean, 0.0)
        scale = ops.rsqrt(variance + self.epsilon) * ops.cast(self.gamma, "float32")
        outputs = (x - mean) * scale + ops.cast(self.beta, "float32")
        return ops.cast(outputs, self.compute_dtype)
