"""The token that the classifier reads."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.validation import check_rank


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(keras.layers.Layer):
    """Prepends one learned token to each sequence: `(B, N, D)` to `(B, 1+N, D)`.

    Call arguments:
        tokens: `(B, N, D)`, float.

    Returns:
        `(B, 1+N, D)` in the compute dtype; row 0 is the class token, the same for every example.

    Raises:
        ValueError: the tokens are not of rank 3.

    Reference: paper equation 1, x_class; the reference's `cls`, initialized with zeros.
    """

    def build(self, input_shape: tuple) -> None:
        check_rank("ClassToken", input_shape, "B, N, D")
        self.cls = self.add_weight(name="cls", shape=(1, 1, input_shape[-1]), initializer="zeros")
        self.built = True

    def call(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        batch, _, hidden_size = ops.shape(tokens)
        return ops.concatenate([ops.broadcast_to(self.cls, (batch, 1, hidden_size)), tokens], axis=1)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, tokens, hidden_size = input_shape
        return (batch, None if tokens is None else tokens + 1, hidden_size)

    def get_config(self) -> dict[str, Any]:
        return super().get_config()
