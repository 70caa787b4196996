"""Dense layers for tokens `(B, N, ...)` that flatten the batch and token axes, except in bfloat16.

On CPUs, XLA copies the operands of a batched matmul, so a 2-D matmul is faster. On TPUs, where models run in bfloat16,
XLA would copy the tokens to flatten them.
"""

import math

import keras
from keras import ops


class TokenDense(keras.layers.Dense):
    """A `Dense` layer on flattened tokens: `(B, N, D)` to `(B, N, units)`."""

    def call(self, inputs, training=None):
        if self.compute_dtype == "bfloat16":
            return super().call(inputs, training=training)
        tokens = ops.shape(inputs)[1]
        # `Dense.call` adds the bias with an op that TensorFlow fuses with the matmul.
        x = super().call(ops.reshape(inputs, (-1, inputs.shape[-1])), training=training)
        return ops.reshape(x, (-1, tokens, self.units))


class TokenProjection(keras.layers.EinsumDense):
    """An `EinsumDense` that contracts all axes after the token axis, without an activation."""

    def call(self, inputs, training=None):
        if self.compute_dtype == "bfloat16":
            return super().call(inputs, training=training)
        tokens, summed = ops.shape(inputs)[1], inputs.shape[2:]
        kernel_in = math.prod(summed)
        x = ops.matmul(ops.reshape(inputs, (-1, kernel_in)), ops.reshape(self.kernel, (kernel_in, -1)))
        if self.bias is not None:
            x = x + ops.reshape(self.bias, (-1,))
        return ops.reshape(x, (-1, tokens, *self.kernel.shape[len(summed) :]))
