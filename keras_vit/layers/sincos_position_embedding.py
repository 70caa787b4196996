"""A fixed position embedding of sines and cosines."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.validation import check_grid, check_rank


@keras.saving.register_keras_serializable(package="keras_vit")
class SinCosPositionEmbedding(keras.layers.Layer):
    """Adds fixed sines and cosines of a patch's column and row: `(B, N, D)` to `(B, N, D)`.

    D/4 frequencies w run geometrically from 1 to 1/10000; the D values are sin(w*column), cos(w*column), sin(w*row),
    cos(w*row).

    Args:
        grid: `(rows, columns)` of the patches; N is their product.

    Call arguments:
        tokens: `(B, N, D)`, float, D a multiple of 4 and at least 8. There is no position for a class token, which
            comes after this layer.

    Returns:
        `(B, N, D)` in the compute dtype.

    Raises:
        ValueError: `grid` is not a pair of positive integers, the number of tokens does not fit it, or D is not a
            multiple of 4, 8 or more.

    Reference: big_vision's `sincos2d`.
    """

    has_class_token_position = False

    def __init__(self, grid: tuple[int, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid = check_grid(grid)

    def build(self, input_shape: tuple) -> None:
        check_rank("SinCosPositionEmbedding", input_shape, "B, N, D")
        _, tokens, hidden_size = input_shape
        rows, columns = self.grid
        if tokens != rows * columns:
            raise ValueError(
                f"A grid of {rows}x{columns} has {rows * columns} tokens. Received: tokens={tokens}, grid={self.grid}"
            )
        if hidden_size % 4 or hidden_size < 8:
            raise ValueError(
                "Sines and cosines of two axes need tokens whose size is a multiple of 4, 8 or more. "
                f"Received: hidden_size={hidden_size}"
            )
        frequencies = 10000.0 ** -np.linspace(0, 1, hidden_size // 4)
        y, x = (axis.reshape(-1, 1) * frequencies for axis in np.mgrid[:rows, :columns])  # (N, D/4)
        self._table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1).astype("float32")
        self.built = True

    def call(self, tokens: keras.KerasTensor) -> keras.KerasTensor:
        return tokens + ops.cast(self._table, self.compute_dtype)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "grid": self.grid}
