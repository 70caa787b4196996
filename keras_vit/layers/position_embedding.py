"""The learned position embedding."""

import keras

from keras_vit.layers.validation import check_grid, check_rank


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

    def __init__(self, grid=None, **kwargs):
        super().__init__(**kwargs)
        self.grid = None if grid is None else check_grid(grid)

    def build(self, input_shape):
        check_rank("PositionEmbedding", input_shape, "B, N, D")
        _, tokens, hidden_size = input_shape
        if tokens is None:
            raise ValueError(
                "PositionEmbedding needs a static number of tokens, since each position has a vector. "
                f"Received: shape={tuple(input_shape)}"
            )
        if self.grid is not None:
            patches = self.grid[0] * self.grid[1]
            if tokens not in (patches, patches + 1):
                raise ValueError(
                    f"A grid of {self.grid[0]}x{self.grid[1]} has {patches} tokens, or {patches + 1} with a class "
                    f"token. Received: tokens={tokens}, grid={self.grid}"
                )
        self.pos_embedding = self.add_weight(
            name="pos_embedding",
            shape=(1, tokens, hidden_size),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        self.built = True

    def call(self, tokens):
        return tokens + self.pos_embedding

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "grid": self.grid}
