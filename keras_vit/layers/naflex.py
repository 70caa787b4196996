"""Layers for NaFlex batches, `(B, S, P*P + 2, C)`, in which each image has its own patch grid; see `keras_vit.naflex`.

The position embedding sets padding tokens to zero. Later layers keep them at zero and so can recognize them.
"""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import BaseLayer
from keras_vit.layers.padding import with_zero_padding
from keras_vit.layers.patches import PatchEncoder
from keras_vit.layers.validation import check_grid, check_positive_int, check_rank
from keras_vit.naflex import linear_weights


@keras.saving.register_keras_serializable(package="keras_vit")
class NaFlexPatches(keras.layers.Layer):
    """Unpacks batches `(B, S, P*P + 2, C)` into patches `(B, S, P*P*C)` and their positions, int32 `(B, S, 2)`.

    A position is `(row, column)` in the image's patch grid, counted from 1; padding has position `(0, 0)`.

    Args:
        patch_size: P, the side of a patch in pixels, 1 or more.

    Raises:
        ValueError: `patch_size` is not a positive integer, or the shape of the batch does not match it.
    """

    def __init__(self, patch_size: int, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # bfloat16 cannot represent odd positions above 256
        check_positive_int("patch_size", patch_size)
        self.patch_size = patch_size

    def build(self, input_shape: tuple) -> None:
        check_rank("NaFlexPatches", input_shape, "B, S, P*P+2, C")
        if input_shape[2] != self.patch_size**2 + 2:
            raise ValueError(
                f"With patch_size={self.patch_size}, a batch must have shape (B, S, {self.patch_size**2 + 2}, C). "
                f"Received: shape={tuple(input_shape)}"
            )

    def call(self, batch: keras.KerasTensor) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        _, budget, values, channels = batch.shape
        places = ops.maximum(ops.cast(ops.round(batch[:, :, -2:, 0]), "int32"), 0)
        return ops.reshape(batch[:, :, :-2], (-1, budget, (values - 2) * channels)), places

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "patch_size": self.patch_size}


@keras.saving.register_keras_serializable(package="keras_vit")
class NaFlexPatchEncoder(PatchEncoder):
    """A `PatchEncoder` for the outputs of `NaFlexPatches`. It also returns the positions, unchanged."""

    def __init__(self, hidden_size: int, use_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(hidden_size, use_bias, **kwargs)
        self.input_spec = None  # `Dense` expects a single input

    def build(self, input_shape: tuple) -> None:
        super().build(input_shape[0])
        self.input_spec = None

    def call(self, inputs: tuple, training: bool | None = None) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        patches, places = inputs
        return super().call(patches), places

    def compute_output_spec(self, inputs: tuple, training: bool | None = None) -> tuple:
        patches, places = inputs
        shape = (*patches.shape[:-1], self.hidden_size)
        return keras.KerasTensor(shape, self.compute_dtype), keras.KerasTensor(places.shape, "int32")


@keras.saving.register_keras_serializable(package="keras_vit")
class NaFlexPositionEmbedding(BaseLayer):
    """Adds a learned position table, resized to each image's grid: `((B, S, D), (B, S, 2))` to `(B, S, D)`.

    The resize is bilinear with antialiasing. It multiplies each image's resize weights by the table, in float32.

    Args:
        grid: `(rows, columns)` of the table.

    Reference: SigLIP 2; matches `Siglip2VisionEmbeddings` in transformers.
    """

    has_class_token_position = False

    def __init__(self, grid: tuple[int, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        grid = check_grid(grid)
        self._keep_arguments(locals())

    def build(self, input_shape: tuple) -> None:
        shape = (1, self.grid[0] * self.grid[1], input_shape[0][-1])
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.pos_embedding = self.add_weight(name="pos_embedding", shape=shape, initializer=initializer)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape[0]

    def call(self, inputs: tuple) -> keras.KerasTensor:
        tokens, places = inputs
        real = ops.max(places, axis=-1) > 0
        sides = ops.cast(ops.maximum(ops.max(places, axis=1, keepdims=True), 1), "float32")  # (B, 1, 2)
        places = ops.cast(ops.maximum(places - 1, 0), "float32")
        rows, columns = (linear_weights(places[..., axis], sides[..., axis], self.grid[axis], ops) for axis in (0, 1))
        weights = rows[..., :, None] * columns[..., None, :]  # (B, S, rows, columns)
        table = ops.cast(self.pos_embedding[0], "float32")
        positions = ops.matmul(ops.reshape(weights, (-1, tokens.shape[1], self.grid[0] * self.grid[1])), table)
        return with_zero_padding(tokens + ops.cast(positions, tokens.dtype), real)

    def multiply_accumulates(self, input_shape: tuple) -> int:
        """Returns the multiply-accumulates of one example for the shape `(B, S, D)`."""
        return self.grid[0] * self.grid[1] * input_shape[1] * input_shape[2]
