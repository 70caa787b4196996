"""Dense layers for tokens `(B, N, ...)` that flatten the batch and token axes where that is faster.

On CPUs, 2-D matmuls are faster: XLA copies the operands of a batched matmul, and TensorFlow fuses a
2-D matmul with its bias and activation. On TPUs, XLA would copy the tokens to flatten them, because
it pads their number, for example from 197 to 200.
"""

import math

import keras
from keras import ops

from keras_vit.layers import compilation


def flattens(layer):
    """Returns whether a layer flattens the batch and token axes."""
    if compilation.platform() == "tpu":
        return False
    # Without a known platform, bfloat16 on JAX suggests a TPU.
    return layer.compute_dtype != "bfloat16" or keras.backend.backend() == "tensorflow"


class TokenDense(keras.layers.Dense):
    """A `Dense` layer for tokens, `(B, N, D)` to `(B, N, units)`.

    If `activate` is set, `activate(x, training)` follows.
    """

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
            # TensorFlow fuses this op with the matmul, but not `+`.
            x = ops.add(x, ops.reshape(self.bias, (-1,)))
        return ops.reshape(x, (-1, tokens, *self.kernel.shape[len(summed) :]))
