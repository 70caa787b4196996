"""Attention along the axes of a feature map, and the layers of the models of appendix D.6."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.resnet_stem import BottleneckUnit, ResNetStem
from keras_vit.layers.std_conv import group_norm
from keras_vit.layers.transformer_block import TransformerBlock
from keras_vit.layers.validation import check_choice, check_grid, check_grid_tokens, check_positive_int, check_rank

AXES = ("height", "width")


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialAttention(keras.layers.Layer):
    """Self-attention of the positions of each column, or of each row, of a feature map: `(B, H, W, C)` to the same.

    With queries and keys of half the size h of a head, values of h, and learned vectors r of the offset of a key k from
    a query q, one for queries, one for keys and one for values, which the heads share:

        scores[q, k] = q . k + q . r_key[k - q] + k . r_query[k - q]
        output[q] = sum over k of softmax(scores)[q, k] (v + r_value[k - q])

    One product without bias makes queries, keys and values, and a GroupNorm of the whole map follows it; another one
    follows the output. Scores are not divided by the root of the size; their softmax is in float32 or more.

    Args:
        num_heads: number of heads; twice as many must divide C.
        axis: "height", each position attends to those of its column, or "width", to those of its row.

    Call arguments:
        features: `(B, H, W, C)`, float; C is a multiple of 32, and the axis is static.

    Returns:
        `(B, H, W, C)` in the compute dtype.

    Raises:
        ValueError: an argument is out of range, the features are not of rank 4, their channels cannot be divided so, or
            the length of the axis is not static.

    Reference: paper appendix D.6, which gives no equation; these are those of Scenic's `AxialResNet`, after Wang et
    al., "Axial-DeepLab". Over what the first GroupNorm takes its mean is not known of either: here over an image.
    """

    def __init__(self, num_heads: int, axis: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive_int("num_heads", num_heads)
        check_choice("axis", axis, AXES)
        self.num_heads = num_heads
        self.axis = axis

    def build(self, input_shape: tuple) -> None:
        check_rank("AxialAttention", input_shape, "B, H, W, C")
        channels, length = input_shape[3], input_shape[1 + AXES.index(self.axis)]
        if channels % 32 or channels % (2 * self.num_heads):
            raise ValueError(
                "The channels must be a multiple of 32 and of twice the heads. "
                f"Received: channels={channels}, num_heads={self.num_heads}"
            )
        if length is None:
            raise ValueError(
                f"Each offset along the {self.axis} has a vector, so it must be static. "
                f"Received: shape={tuple(input_shape)}"
            )
        head_size = channels // self.num_heads
        policy = self.dtype_policy
        self.qkv = keras.layers.Dense(
            2 * channels,
            use_bias=False,
            kernel_initializer=keras.initializers.RandomNormal(stddev=1 / channels),
            dtype=policy,
            name="qkv",
        )
        self.gn_qkv = group_norm("gn_qkv", epsilon=1e-4, dtype=policy)
        self.gn_out = group_norm("gn_out", epsilon=1e-4, dtype=policy)
        self.qkv.build(input_shape)
        self.gn_qkv.build((*input_shape[:3], 2 * channels))
        self.gn_out.build(input_shape)
        # Row i is of the offset i - (length-1), in the order queries, keys, values.
        self.axis_embedding = self.add_weight(
            name="axis_embedding",
            shape=(2 * length - 1, 2 * head_size),
            initializer=keras.initializers.RandomNormal(stddev=1 / head_size),
        )
        self.built = True

    def call(self, features: keras.KerasTensor) -> keras.KerasTensor:
        _, height, width, channels = features.shape
        is_height = self.axis == "height"
        length, lines = (height, width) if is_height else (width, height)
        lines = ops.shape(features)[2 if is_height else 1] if lines is None else lines
        heads, size = self.num_heads, channels // self.num_heads

        x = self.gn_qkv(self.qkv(features))  # (B, H, W, 2C)
        if is_height:
            x = ops.transpose(x, (0, 2, 1, 3))
        x = ops.transpose(ops.reshape(x, (-1, length, heads, 2 * size)), (0, 2, 1, 3))
        x = ops.reshape(x, (-1, length, 2 * size))  # (B*lines*heads, length, 2*size)
        query, key, value = ops.split(x, (size // 2, size), axis=-1)

        offsets = np.arange(length)[None, :] - np.arange(length)[:, None]  # of key k from query q, [q, k]
        table = ops.take(ops.cast(self.axis_embedding, self.compute_dtype), offsets + length - 1, axis=0)
        of_query, of_key, of_value = ops.split(table, (size // 2, size), axis=-1)  # (length, length, size/2 or size)

        scores = ops.matmul(query, ops.transpose(key, (0, 2, 1)))
        scores = scores + _by_position(query, ops.transpose(of_key, (0, 2, 1)))
        scores = scores + ops.transpose(_by_position(key, ops.transpose(of_query, (1, 2, 0))), (0, 2, 1))
        if self.compute_dtype in ("float16", "bfloat16"):
            scores = ops.cast(scores, "float32")
        scores = ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)
        x = ops.matmul(scores, value) + _by_position(scores, of_value)

        x = ops.transpose(ops.reshape(x, (-1, heads, length, size)), (0, 2, 1, 3))
        x = ops.reshape(x, (-1, lines, length, channels))
        if is_height:
            x = ops.transpose(x, (0, 2, 1, 3))
        return self.gn_out(x)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def multiply_accumulates(self, input_shape: tuple) -> int:
        """Multiply-accumulates of one example; the shape is `(B, H, W, C)`."""
        _, height, width, channels = input_shape
        length = height if self.axis == "height" else width
        # Queries, keys and values; three kinds of scores of half a head's size, and two of sums of its whole size.
        return height * width * (2 * channels**2 + length * (3 * channels // 2 + 2 * channels))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_heads": self.num_heads, "axis": self.axis}


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialResNetStem(ResNetStem):
    """A `ResNetStem` with attention along columns and then rows in place of each 3x3 convolution.

    Its root is the same. Where a unit halves the sides, the mean of 2x2 positions does so after the attention.

    Args:
        blocks, width: as of `ResNetStem`.
        num_heads: of the attention; twice as many must divide `width`.

    Call arguments:
        images: `(B, H, W, C)`, float, of a static size.

    Returns:
        `(B, h, w, F)` in the compute dtype, 0 or more.

    Raises:
        ValueError: as `ResNetStem` and `AxialAttention`.

    Reference: paper appendix D.6; Scenic's `AxialResNet` (epsilon of GroupNorm 1e-4, of the weight standardization
    1e-10 on the variance).
    """

    norm_epsilon = 1e-4
    variance_epsilon = 1e-10

    def __init__(self, blocks: Sequence[int] = (), width: int = 64, num_heads: int = 8, **kwargs: Any) -> None:
        super().__init__(blocks, width, **kwargs)
        self.num_heads = num_heads

    def _unit(self, channels, strides, **kwargs):
        return AxialBottleneckUnit(channels, strides, self.num_heads, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_heads": self.num_heads}


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialBottleneckUnit(BottleneckUnit):
    """A `BottleneckUnit` with attention along columns and then rows in place of the 3x3 convolution.

    Args:
        channels, strides: as of `BottleneckUnit`; the mean of 2x2 positions takes the strides.
        num_heads: of the attention.
    """

    norm_epsilon = 1e-4
    variance_epsilon = 1e-10

    def __init__(self, channels: int, strides: int = 1, num_heads: int = 8, **kwargs: Any) -> None:
        super().__init__(channels, strides, **kwargs)
        self.num_heads = num_heads

    def _spatial_layers(self):
        policy = self.dtype_policy
        self.attention_height = AxialAttention(self.num_heads, "height", dtype=policy, name="attention_height")
        self.attention_width = AxialAttention(self.num_heads, "width", dtype=policy, name="attention_width")
        self.mean = keras.layers.AveragePooling2D(
            self.strides, padding="same", data_format="channels_last", dtype=policy, name="mean"
        )
        return self.attention_height, self.attention_width, self.mean

    def _counted_layers(self):
        return self.conv1, self.attention_height, self.attention_width, self.mean, self.conv3

    def _spatial(self, x):
        x = self.attention_width(self.attention_height(x))
        return ops.relu(x if self.strides == 1 else self.mean(x))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_heads": self.num_heads}


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialTransformerBlock(keras.layers.Layer):
    """Two encoder blocks on a grid of tokens: one on each row by itself, then one on each column.

    Each of them is a `TransformerBlock`, with attention, MLP and weights of its own, so that a block has twice the
    parameters of a `TransformerBlock`; scores need the memory of rows + columns instead of rows * columns a token.

    Args:
        grid: `(rows, columns)` of the tokens.
        num_heads, mlp_dim, dropout, attention_dropout, stochastic_depth, exact_gelu, epsilon, remat: of both, see
            `TransformerBlock`. A residual branch is dropped for a row, or a column, of an example.

    Call arguments:
        tokens: `(B, N, D)`, float, row by row; N is `rows * columns`.
        training: whether dropout and stochastic depth are active.

    Returns:
        `(B, N, D)` in the compute dtype.

    Raises:
        ValueError: an argument is out of range, `num_heads` does not divide D, or the tokens do not fit the grid.

    Reference: paper appendix D.6, where row attention comes first. In a row the tokens of one row attend to each
    other; Scenic's `EncoderAxial` calls the other direction so.
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
        self.grid = check_grid(grid)
        self.options: dict[str, Any] = {
            "num_heads": num_heads,
            "mlp_dim": mlp_dim,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "stochastic_depth": stochastic_depth,
            "exact_gelu": exact_gelu,
            "epsilon": epsilon,
            "remat": remat,
        }
        self.row = TransformerBlock(**self.options, dtype=self.dtype_policy, name="row")
        self.column = TransformerBlock(**self.options, dtype=self.dtype_policy, name="column")
        self.remat = remat

    def build(self, input_shape: tuple) -> None:
        check_rank("AxialTransformerBlock", input_shape, "B, N, D")
        rows, columns = self.grid
        check_grid_tokens(self.grid, input_shape[1], class_token=False)
        self.row.build((None, columns, input_shape[2]))
        self.column.build((None, rows, input_shape[2]))
        self.built = True

    def call(self, tokens: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        rows, columns = self.grid
        size = tokens.shape[2]
        x = self.row(ops.reshape(tokens, (-1, columns, size)), training=training)  # (B*rows, columns, D)
        x = ops.transpose(ops.reshape(x, (-1, rows, columns, size)), (0, 2, 1, 3))
        x = self.column(ops.reshape(x, (-1, rows, size)), training=training)  # (B*columns, rows, D)
        x = ops.transpose(ops.reshape(x, (-1, columns, rows, size)), (0, 2, 1, 3))
        return ops.reshape(x, (-1, rows * columns, size))

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def multiply_accumulates(self, input_shape: tuple) -> int:
        """Multiply-accumulates of one example; the shape is `(B, N, D)`."""
        rows, columns = self.grid
        by_row = self.row.multiply_accumulates((None, columns, input_shape[2]))
        return rows * by_row + columns * self.column.multiply_accumulates((None, rows, input_shape[2]))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "grid": self.grid, **self.options}


def _by_position(x, matrices):
    """`(G, N, D)` by `(N, D, M)` to `(G, N, M)`: the vectors of each position by its own matrix."""
    return ops.transpose(ops.matmul(ops.transpose(x, (1, 0, 2)), matrices), (1, 0, 2))
