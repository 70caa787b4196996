"""Projecting patches to tokens."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.validation import check_positive_int, check_rank


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEncoder(keras.layers.Layer):
    """Projects flattened patches linearly to tokens: `(B, N, P*P*C)` to `(B, N, hidden_size)`.

    After `Patches` it equals the strided convolution that the reference calls `embedding`; the kernel here is that
    convolution's, `(P, P, C, D)`, reshaped to `(P*P*C, D)`.

    Args:
        hidden_size: D, the size of a token, 1 or more.

    Call arguments:
        patches: `(B, N, P*P*C)`, float.

    Returns:
        `(B, N, hidden_size)` in the compute dtype.

    Raises:
        ValueError: `hidden_size` is not a positive integer, or the patches are not of rank 3.

    Reference: paper equation 1, the matrix E; initialized as in the reference (LeCun normal, zero bias).
    """

    def __init__(self, hidden_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive_int("hidden_size", hidden_size)
        self.hidden_size = hidden_size

    def build(self, input_shape: tuple) -> None:
        check_rank("PatchEncoder", input_shape, "B, N, P*P*C")
        self.kernel = self.add_weight(
            name="kernel", shape=(input_shape[-1], self.hidden_size), initializer="lecun_normal"
        )
        self.bias = self.add_weight(name="bias", shape=(self.hidden_size,), initializer="zeros")
        self.built = True

    def call(self, patches: keras.KerasTensor) -> keras.KerasTensor:
        if self.compute_dtype == "bfloat16":
            return ops.matmul(patches, self.kernel) + self.bias  # to flatten patches, XLA for TPUs copies them
        # One product of two matrices: of one with a batch axis, XLA for CPUs transposes the gradient of the tokens, and
        # for each of its numbers adds up the residuals of all blocks again.
        count = ops.shape(patches)[1]
        tokens = ops.matmul(ops.reshape(patches, (-1, patches.shape[-1])), self.kernel) + self.bias
        return ops.reshape(tokens, (-1, count, self.hidden_size))

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return (*input_shape[:-1], self.hidden_size)

    def multiply_accumulates(self, input_shape: tuple) -> int:
        """Multiply-accumulates of one example; the shape is `(B, N, P*P*C)`."""
        return input_shape[1] * input_shape[2] * self.hidden_size

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "hidden_size": self.hidden_size}
