"""The learned position embedding of two axes."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.validation import check_grid, check_grid_tokens, check_rank


@keras.saving.register_keras_serializable(package="keras_vit")
class PositionEmbedding2D(keras.layers.Layer):
    """Adds a learned vector of the patch's column and one of its row to each token: `(B, N, D)` to `(B, N, D)`.

    The first D/2 values are those of the column, the others those of the row. A class token has a vector of its own,
    which the paper leaves open.

    Args:
        grid: `(rows, columns)` of the patches; N is their product, or one more with a class token in front.

    Call arguments:
        tokens: `(B, N, D)`, float; D is even.

    Returns:
        `(B, N, D)` in the compute dtype.

    Raises:
        ValueError: `grid` is not a pair of positive integers, the number of tokens does not fit it, or D is odd.

    Reference: paper appendix D.4, "2-D"; column before row and the deviation, 0.02, as in Scenic's
    `Add2DPositionEmbedding`.
    """

    has_class_token_position = True

    def __init__(self, grid: tuple[int, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid = check_grid(grid)

    def build(self, input_shape: tuple) -> None:
        check_rank("PositionEmbedding2D", input_shape, "B, N, D")
        _, tokens, hidden_size = input_shape
        rows, columns = self.grid
        check_grid_tokens(self.grid, tokens)
        if hidden_size % 2:
            raise ValueError(f"Half of a token is its column's: its size must be even. Received: {hidden_size}")

        def table(name, length, size):
            initializer = keras.initializers.RandomNormal(stddev=0.02)
            return self.add_weight(name=name, shape=(1, length, size), initializer=initializer)

        self.x_embedding = table("x_embedding", columns, hidden_size // 2)
        self.y_embedding = table("y_embedding", rows, hidden_size // 2)
        has_class_token = tokens > rows * columns
        self.class_embedding = table("class_embedding", 1, hidden_size) if has_class_token else None
        self.built = True

    def call(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        rows, columns = self.grid
        half = self.x_embedding.shape[-1]
        x = ops.broadcast_to(self.x_embedding[:, None], (1, rows, columns, half))
        y = ops.broadcast_to(self.y_embedding[:, :, None], (1, rows, columns, half))
        positions = ops.reshape(ops.concatenate([x, y], axis=-1), (1, rows * columns, 2 * half))
        if self.class_embedding is not None:
            positions = ops.concatenate([ops.convert_to_tensor(self.class_embedding), positions], axis=1)
        return tokens + positions

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "grid": self.grid}
