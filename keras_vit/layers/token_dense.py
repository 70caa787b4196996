"""Dense layers of tokens."""

import math

import keras
from keras import ops


class _OverTokens:
    """Computes a product over tokens `(B, N, ...)` as one product of two matrices, except in bfloat16.

    For a product with a batch axis, XLA for CPUs copies the operands of the gradient's products, and TensorFlow's own
    einsum is slower. To flatten tokens, XLA for TPUs copies them: a sixth of the bytes of a step.
    """

    def call(self, inputs, training=None):
        if self.compute_dtype == "bfloat16":
            return super().call(inputs, training=training)
        tokens, summed = ops.shape(inputs)[1], inputs.shape[2:]
        kernel_in = math.prod(summed)
        x = ops.matmul(ops.reshape(inputs, (-1, kernel_in)), ops.reshape(self.kernel, (kernel_in, -1)))
        if self.bias is not None:
            x = x + ops.reshape(self.bias, (-1,))
        return ops.reshape(x, (-1, tokens, *self.kernel.shape[len(summed) :]))


class TokenDense(_OverTokens, keras.layers.Dense):
    """`Dense` without an activation: `(B, N, D)` to `(B, N, units)`."""


class TokenProjection(_OverTokens, keras.layers.EinsumDense):
    """`EinsumDense` over the axes after the tokens, without an activation."""
