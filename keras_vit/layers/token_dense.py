"""Dense layers of tokens `(B, N, ...)`, computed as one product of two matrices, except in bfloat16.

XLA on CPUs copies the operands of batched products; XLA on TPUs would copy to flatten the tokens instead.
"""

import math

import keras
from keras import ops


class TokenDense(keras.layers.Dense):
    """`Dense`: `(B, N, D)` to `(B, N, units)`."""

    def call(self, inputs, training=None):
        if self.compute_dtype == "bfloat16":
            return super().call(inputs, training=training)
        tokens = ops.shape(inputs)[1]
        # Keras adds the bias with an op that TensorFlow fuses with the product.
        x = super().call(ops.reshape(inputs, (-1, inputs.shape[-1])), training=training)
        return ops.reshape(x, (-1, tokens, self.units))


class TokenProjection(keras.layers.EinsumDense):
    """`EinsumDense` over the axes after the tokens, without an activation."""

    def call(self, inputs, training=None):
        if self.compute_dtype == "bfloat16":
            return super().call(inputs, training=training)
        tokens, summed = ops.shape(inputs)[1], inputs.shape[2:]
        kernel_in = math.prod(summed)
        x = ops.matmul(ops.reshape(inputs, (-1, kernel_in)), ops.reshape(self.kernel, (kernel_in, -1)))
        if self.bias is not None:
            x = x + ops.reshape(self.bias, (-1,))
        return ops.reshape(x, (-1, tokens, *self.kernel.shape[len(summed) :]))
