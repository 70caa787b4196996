"""Dense layers for tokens `(B, N, ...)` that flatten the batch and token axes, except in bfloat16
on JAX.

On CPUs, 2-D matmuls are faster: XLA copies the operands of a batched matmul, and TensorFlow fuses a
2-D matmul with its bias and activation. On TPUs, where models usually run in bfloat16, XLA would
copy the tokens to flatten them.
"""

import math

import keras
from keras import ops


def flattens(layer):
    """Returns whether a layer flattens the batch and token axes."""
    return layer.compute_dtype != "bfloat16" or keras.backend.backend() == "tensorflow"


class TokenDense(keras.layers.Dense):
    """A `Dense` layer for tokens: `(B, N, D)` to `(B, N, units)`, followed by `activate(x,
    training)`."""

    def __init__(self, units, activate=None, **kwargs):
        super().__init__(units, **kwargs)
        self._activate = activate

    def call(self, inputs, training=None):
        flat = flattens(self)
        x = ops.reshape(inputs, (-1, inputs.shape[-1])) if flat else inputs
        x = super().call(x, training=training)
        if self._activate is not None:
            x = self._activate(x, training)
        return ops.reshape(x, (-1, ops.shape(inputs)[1], self.units)) if flat else x


class TokenProjection(keras.layers.EinsumDense):
    """An `EinsumDense` that contracts all axes after the token axis, without an activation."""

    def call(self, inputs, training=None):
        if not flattens(self):
            return super().call(inputs, training=training)
        tokens = ops.shape(inputs)[1]
        summed = inputs.shape[2:]
        kernel_in = math.prod(summed)
        x = ops.matmul(
            ops.reshape(inputs, (-1, kernel_in)), ops.reshape(self.kernel, (kernel_in, -1))
        )
        if self.bias is not None:
            x = ops.add(
                x, ops.reshape(self.bias, (-1,))
            )  # TensorFlow fuses this op with the matmul, but not `+`
        return ops.reshape(x, (-1, tokens, *self.kernel.shape[len(summed) :]))
