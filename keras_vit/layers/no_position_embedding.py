"""The place of a position embedding, where there is none."""

from typing import Any

import keras

from keras_vit.layers.validation import check_grid, check_rank


@keras.saving.register_keras_serializable(package="keras_vit")
class NoPositionEmbedding(keras.layers.Layer):
    """Returns the tokens as they are, `(B, N, D)`, and knows their grid, which other code asks a model for.

    Args:
        grid: `(rows, columns)` of the patches. It changes no number.

    Call arguments:
        tokens: `(B, N, D)`, float.

    Returns:
        `(B, N, D)`.

    Raises:
        ValueError: `grid` is not a pair of positive integers, or the tokens are not of rank 3.

    Reference: paper appendix D.4, "providing no positional information".
    """

    has_class_token_position = True

    def __init__(self, grid: tuple[int, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid = check_grid(grid)

    def build(self, input_shape: tuple) -> None:
        check_rank("NoPositionEmbedding", input_shape, "B, N, D")
        self.built = True

    def call(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        return tokens

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "grid": self.grid}
