"""Position embeddings that are added to tokens."""

from typing import Any

import numpy as np
from keras import KerasTensor, ops

from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.validation import (
    check_grid,
    check_grid_tokens,
    check_rank,
    check_static_tokens,
)


class _Positions(BaseLayer):
    """Base class of position embeddings for a grid of patches: `(B, N, D)` to `(B, N, D)`."""

    # Whether the layer accepts a class token in front of the patches.
    has_class_token_position = True
    needs_grid = True

    def __init__(self, grid: tuple[int, int] | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if grid is not None or self.needs_grid:
            grid = check_grid(grid)
        self._keep_arguments(locals())


@serializable
class PositionEmbedding(_Positions):
    """Adds a learned vector to the token at each position.

    Maps `(B, N, D)` to `(B, N, D)`; N must be static.

    Args:
        grid: `(rows, columns)` of the patches. N must be `rows * columns` plus the number of class
            tokens in front (0, 1 or 2). A checkpoint's position embeddings are resampled to this
            grid. None accepts any N.

    Raises:
        ValueError: `grid` is invalid, the tokens do not have rank 3, or N is not static or does not
            match `grid`.

    Reference: paper equation 1, E_pos; initialized as in vit_jax (normal, standard deviation 0.02).
    """

    needs_grid = False

    def __init__(self, grid: tuple[int, int] | None = None, **kwargs: Any) -> None:
        super().__init__(grid, **kwargs)

    def build(self, input_shape: tuple) -> None:
        check_static_tokens("PositionEmbedding", input_shape, "each position has its own vector")
        _, tokens, hidden_size = input_shape
        if self.grid is not None:
            check_grid_tokens(self.grid, tokens, max_class_tokens=2)
        self.expect_tokens(input_shape)
        self.pos_embedding = self.add_normal_weight("pos_embedding", (1, tokens, hidden_size))

    def call(self, tokens: KerasTensor) -> KerasTensor:
        return tokens + self.pos_embedding


@serializable
class PositionEmbedding2D(_Positions):
    """Adds learned vectors for the column and the row of each patch: `(B, N, D)` to `(B, N, D)`.

    The first D/2 values encode the column, the others the row. The paper does not specify the
    position embedding of a class token; here, a class token has its own vector.

    Args:
        grid: `(rows, columns)` of the patches; N is `rows * columns`, or one more with a class
            token in front.

    Raises:
        ValueError: `grid` is not a pair of positive integers, the tokens do not have rank 3, N does
            not match `grid`, or D is odd.

    Reference: paper appendix D.4, "2-D". The order of column and row and the initialization
        (normal, standard deviation 0.02) follow Scenic's `Add2DPositionEmbedding`.
    """

    def build(self, input_shape: tuple) -> None:
        check_rank("PositionEmbedding2D", input_shape, "B, N, D")
        _, tokens, hidden_size = input_shape
        rows, columns = self.grid
        check_grid_tokens(self.grid, tokens, max_class_tokens=1)
        self.expect_tokens(input_shape)
        if hidden_size % 2:
            raise ValueError(
                "`hidden_size` must be even, because half of it encodes the column and half the "
                f"row. Received: hidden_size={hidden_size}"
            )
        half = hidden_size // 2
        self.x_embedding = self.add_normal_weight("x_embedding", (1, columns, half))
        self.y_embedding = self.add_normal_weight("y_embedding", (1, rows, half))
        self.class_embedding = None
        if tokens > rows * columns:
            self.class_embedding = self.add_normal_weight("class_embedding", (1, 1, hidden_size))

    def call(self, tokens: KerasTensor) -> KerasTensor:
        rows, columns = self.grid
        x = ops.tile(self.x_embedding, (1, rows, 1))
        y = ops.repeat(self.y_embedding, columns, axis=1)
        positions = ops.concatenate([x, y], axis=-1)  # (1, rows * columns, D)
        if self.class_embedding is not None:
            positions = ops.concatenate(
                [ops.convert_to_tensor(self.class_embedding), positions], axis=1
            )
        return tokens + positions


@serializable
class SinCosPositionEmbedding(_Positions):
    """Adds fixed sines and cosines of the column and the row of each patch.

    Maps `(B, N, D)` to `(B, N, D)`.

    The D/4 frequencies w are a geometric series from 1 to 1/10000. Each frequency contributes the
    four values sin(w*column), cos(w*column), sin(w*row) and cos(w*row). A class token has no
    position embedding and must be prepended after this layer.

    Args:
        grid: `(rows, columns)` of the patches; N is `rows * columns`.

    Raises:
        ValueError: `grid` is not a pair of positive integers, the tokens do not have rank 3, N does
            not match `grid`, or D is less than 8 or not a multiple of 4.

    Reference: big_vision's `sincos2d`.
    """

    has_class_token_position = False

    def build(self, input_shape: tuple) -> None:
        check_rank("SinCosPositionEmbedding", input_shape, "B, N, D")
        _, tokens, hidden_size = input_shape
        check_grid_tokens(self.grid, tokens)
        self.expect_tokens(input_shape)
        if hidden_size % 4 or hidden_size < 8:
            raise ValueError(
                "`hidden_size` must be a multiple of 4 and at least 8 for sine-cosine position "
                f"embeddings. Received: hidden_size={hidden_size}"
            )
        frequencies = 10000.0 ** -np.linspace(0, 1, hidden_size // 4)
        rows, columns = self.grid
        # y and x are the angles of each patch, (N, D/4).
        y, x = (axis.reshape(-1, 1) * frequencies for axis in np.mgrid[:rows, :columns])
        self._values = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1).astype(
            "float32"
        )

    def call(self, tokens: KerasTensor) -> KerasTensor:
        return tokens + ops.cast(self._values, self.compute_dtype)


@serializable
class NoPositionEmbedding(_Positions):
    """Returns tokens `(B, N, D)` unchanged, for models that add no position embeddings to tokens.

    Args:
        grid: `(rows, columns)` of the patches. It does not affect the output.

    Raises:
        ValueError: `grid` is not a pair of positive integers.

    Reference: paper appendix D.4, "providing no positional information".
    """

    def call(self, tokens: KerasTensor) -> KerasTensor:
        return tokens


# Layer classes by the argument `position_embedding` of `VisionTransformer`. A layer takes the patch
# grid, `(rows, columns)`, and adds position embeddings to tokens `(B, N, D)`. To support another
# position embedding, write a layer and add it here.
POSITION_EMBEDDINGS: dict[str, type[_Positions]] = {
    "learned": PositionEmbedding,
    "learned2d": PositionEmbedding2D,
    "sincos2d": SinCosPositionEmbedding,
    "none": NoPositionEmbedding,
    "relative": NoPositionEmbedding,  # the attention layers add relative positions
}
