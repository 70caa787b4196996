"""The Axial-ViT block of paper appendix D.6, with attention along rows and columns."""

from typing import Any

from keras import KerasTensor, ops

from keras_vit.layers.base import BaseLayer, arguments_among, serializable
from keras_vit.layers.transformer_block import TransformerBlock
from keras_vit.layers.validation import check_grid, check_grid_tokens, check_rank


@serializable
class AxialTransformerBlock(BaseLayer):
    """Two encoder blocks that attend along the rows, then the columns of a token grid.

    Maps `(B, N, D)` to `(B, N, D)`. Both blocks are `TransformerBlock`s with their own weights.
    Each token attends to rows + columns tokens instead of rows * columns.

    Args:
        grid: `(rows, columns)` of the tokens, which are in row-major order.
        num_heads, mlp_dim, dropout, attention_dropout, stochastic_depth, exact_gelu, epsilon,
            remat: arguments of both `TransformerBlock`s. Stochastic depth drops residual branches
            of each row or column independently.

    Raises:
        ValueError: an argument is out of range, `num_heads` does not divide D, the tokens do not
            have rank 3, or their number does not match the grid.

    Reference: paper appendix D.6. As in the paper, row attention (among the tokens of one row)
        comes first. Scenic's `EncoderAxial` swaps the names of row and column attention.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        num_heads: int,
        mlp_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        exact_gelu: bool = False,
        epsilon: float = 1e-6,
        remat: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        grid = check_grid(grid)
        self._keep_arguments(locals())
        options = arguments_among(locals(), omit=("grid",))
        self.row, self.column = (
            TransformerBlock(**options, dtype=self.dtype_policy, name=name)
            for name in ("row", "column")
        )

    def build(self, input_shape: tuple) -> None:
        check_rank("AxialTransformerBlock", input_shape, "B, N, D")
        rows, columns = self.grid
        check_grid_tokens(self.grid, input_shape[1])
        self.expect_tokens(input_shape)
        self.row.build((None, columns, input_shape[2]))
        self.column.build((None, rows, input_shape[2]))

    def call(self, tokens: KerasTensor, training: bool = False) -> KerasTensor:
        rows, columns = self.grid
        size = tokens.shape[2]
        # The rows are examples of the first block: (B*rows, columns, D).
        x = self.row(ops.reshape(tokens, (-1, columns, size)), training=training)
        x = ops.transpose(ops.reshape(x, (-1, rows, columns, size)), (0, 2, 1, 3))
        # The columns are examples of the second block: (B*columns, rows, D).
        x = self.column(ops.reshape(x, (-1, rows, size)), training=training)
        x = ops.transpose(ops.reshape(x, (-1, columns, rows, size)), (0, 2, 1, 3))
        return ops.reshape(x, (-1, rows * columns, size))

    def multiply_accumulates(self, input_shape: tuple) -> int:
        """Returns the multiply-accumulates of one example for the shape `(B, N, D)`."""
        rows, columns = self.grid
        per_row = self.row.multiply_accumulates((None, columns, input_shape[2]))
        per_column = self.column.multiply_accumulates((None, rows, input_shape[2]))
        return rows * per_row + columns * per_column
