"""The learned position embedding."""

from typing import Any

import keras

from keras_vit.layers.validation import check_grid, check_grid_tokens, check_static_tokens


@keras.saving.register_keras_serializable(package="keras_vit")
class PositionEmbedding(keras.layers.Layer):
    """Adds a learned vector to the token at each position: `(B, N, D)` to `(B, N, D)`.

    Args:
        grid: `(rows, columns)` of the patches, or None where it is not known. It changes no number; a checkpoint's
            positions are resampled to it. There are `rows * columns` tokens, or one more with a class token in front.

    Call arguments:
        tokens: `(B, N, D)`, float; N is static, since every position has a vector.

    Returns:
        `(B, N, D)` in the compute dtype.

    Raises:
        ValueError: the tokens are not of rank 3, have no static length, or a length that does not fit `grid`.

    Reference: paper equation 1, E_pos; initialized as in the reference (normal, deviation 0.02).
    """

    has_class_token_position = True

    def __init__(self, grid: tuple[int, int] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid = None if grid is None else check_grid(grid)

    def build(self, input_shape: tuple) -> None:
        check_static_tokens("PositionEmbedding", input_shape, "each position has a vector")
        _, tokens, hidden_size = input_shape
        if self.grid is not None:
            check_grid_tokens(self.grid, tokens)
        self.pos_embedding = self.add_weight(
            name="pos_embedding",
            shape=(1, tokens, hidden_size),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        self.built = True

    def call(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        return tokens + self.pos_embedding

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "grid": self.grid}
