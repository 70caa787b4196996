"""The NaFlex Vision Transformer of SigLIP 2, whose images may have any size and aspect ratio."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.padding import with_zero_padding
from keras_vit.layers.patches import PatchEncoder
from keras_vit.layers.validation import check_positive_int
from keras_vit.models import parts
from keras_vit.models.image_model import VARIANTS, keep
from keras_vit.models.validation import check_supported
from keras_vit.models.vision_transformer import VisionTransformer
from keras_vit.naflex import batch_shape, linear_weights
from keras_vit.preprocessing import Layout, concrete_values

# Values of arguments that the model supports; see `VisionTransformer`.
_SUPPORTED = {
    "classifier": ("map",),
    "position_embedding": ("learned",),
    "position_embedding_at": ("stem",),
    "num_registers": (0,),
    "rotary": (None,),
    "pre_norm": (False,),
    "pool_norm": (False,),
    "resnet_blocks": (None,),
}


@serializable
class NaFlexVisionTransformer(VisionTransformer):
    """A Vision Transformer for batches of `keras_vit.naflex`.

    Maps `(B, max_patches, P*P + 2, C)` to `(B, classes)`. Every image has its own patch grid. The
    position table has the grid of `input_shape` and is resized to the grid of each image. Padding
    patches stay zero and are not attended to.

    Args:
        max_patches: largest number of patches of an image.
        **kwargs: arguments of `VisionTransformer`; `classifier` must be "map" (the default here),
            and position embeddings are learned and added once. Registers, rotary embeddings,
            `pre_norm`, `pool_norm` and ResNet stems are not supported.

    Raises:
        ValueError: an argument is out of range or not supported, or the checkpoint does not match.

    Reference: SigLIP 2, arXiv 2502.14786; matches `Siglip2VisionModel` in transformers.
    """

    has_padding = True
    set_by_data = ("max_patches",)

    def __init__(
        self,
        *,
        max_patches: int = 256,
        classifier: str = "map",
        name: str = "naflex_vision_transformer",
        **kwargs: Any,
    ) -> None:
        check_positive_int("max_patches", max_patches)
        keep(self, max_patches=max_patches)
        super().__init__(classifier=classifier, name=name, **kwargs)
        self.num_tokens = max_patches

    @classmethod
    def arguments_for(
        cls, batch_shape: tuple[int, ...], arguments: Mapping[str, Any], layout: Layout
    ) -> dict[str, Any]:
        side = arguments.get("patch_size") or 0
        if layout.has_one_size or batch_shape[1] != side**2 + 2:
            raise ValueError(
                "A NaFlex model requires fields such as --config.data.max_patches=256 "
                f"--config.data.patch_size={side}. Received: images of shape {batch_shape}"
            )
        # The grid of the position table is that of the weights, or 16 x 16.
        shape = arguments.get("input_shape") or (16 * side, 16 * side, batch_shape[2])
        return {"max_patches": batch_shape[0], "input_shape": shape}

    @classmethod
    def data_fields(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {name: arguments[name] for name in ("max_patches", "patch_size")}

    def own_arguments(self) -> dict[str, Any]:
        return {"max_patches": self.max_patches}

    def batch_shape(self, arguments: Mapping[str, Any]) -> tuple[int, int, int]:
        return batch_shape(self.max_patches, arguments["patch_size"], arguments["input_shape"][2])

    def make_input(
        self, arguments: Mapping[str, Any], preprocessing: Any, policy: dict
    ) -> dict[str, Any]:
        check_supported(
            arguments,
            _SUPPORTED,
            'A NaFlex model requires classifier="map" and learned position embeddings added once, '
            "and does not support registers, rotary embeddings, `pre_norm`, `pool_norm` or ResNet "
            "stems.",
        )
        made = parts.make_input(arguments, preprocessing, policy)
        layer = made["input_preprocessing"]
        layer.autocast = False  # bfloat16 cannot represent odd positions above 256
        layer.preprocessing = dataclasses.replace(layer.preprocessing, resize="naflex")
        size = arguments["hidden_size"]
        use_bias = arguments["patch_bias"]
        return {
            **made,
            "patches": NaFlexPatches(arguments["patch_size"], name="patches", **policy),
            "patch_encoder": NaFlexPatchEncoder(size, use_bias, name="embedding", **policy),
        }

    def make_positions(self, arguments: Mapping[str, Any], policy: dict) -> keras.layers.Layer:
        return NaFlexPositionEmbedding(self.grid, name="position_embedding", **policy)

    def __call__(self, inputs: KerasTensor, *args: Any, **kwargs: Any) -> Any:
        self.check_input(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def check_input(self, images: Any) -> None:
        """Raises a `ValueError` for plain images and, in eager calls, images without patches."""
        shape = tuple(getattr(images, "shape", ()))
        if len(shape) != 4:
            return
        if shape[1:] != self.image_shape:
            raise ValueError(
                f"A NaFlex model of {self.max_patches} patches takes batches of shape (B, "
                f"{', '.join(map(str, self.image_shape))}); use "
                "`keras_vit.preprocess_input(list_of_images, model)`. Received: images of shape "
                f"{shape}"
            )
        positions = images[:, :, -2:]
        if not isinstance(positions, np.ndarray):
            positions = concrete_values(positions)
        if positions is not None and not (positions > 0).any((1, 2, 3)).all():
            raise ValueError(
                "At least one image of the batch has no patches: its positions are 0. Received: "
                f"shape={shape}"
            )

    def check_grid(self) -> None:
        raise ValueError(
            "Each image of a NaFlex batch has its own patch grid, so the tokens do not form maps "
            f"of one size. Received: model={self.name!r}"
        )


VARIANTS["max_patches"] = NaFlexVisionTransformer


# The layers. The position embedding sets padding tokens to zero; later layers keep them at zero, so
# that they can recognize them.


@serializable
class NaFlexPatches(keras.layers.Layer):
    """Unpacks the patches and their positions from a batch.

    Maps `(B, S, P*P + 2, C)` to patches `(B, S, P*P*C)` and positions, int32 `(B, S, 2)`. A
    position is `(row, column)` in the image's patch grid, counted from 1; padding has position
    `(0, 0)`.

    Args:
        patch_size: P, the side of a patch in pixels, 1 or more.

    The model checks the shape of the batch.
    """

    def __init__(self, patch_size, **kwargs):
        # bfloat16 cannot represent odd positions above 256.
        super().__init__(autocast=False, **kwargs)
        self.patch_size = patch_size

    def call(self, batch):
        _, budget, values, channels = batch.shape
        positions = ops.maximum(ops.cast(ops.round(batch[:, :, -2:, 0]), "int32"), 0)
        return ops.reshape(batch[:, :, :-2], (-1, budget, (values - 2) * channels)), positions

    def get_config(self):
        return {**super().get_config(), "patch_size": self.patch_size}


@serializable
class NaFlexPatchEncoder(PatchEncoder):
    """A `PatchEncoder` for the outputs of `NaFlexPatches`.

    It also returns the positions, unchanged.
    """

    def __init__(self, hidden_size, use_bias=True, **kwargs):
        super().__init__(hidden_size, use_bias, **kwargs)
        self.input_spec = None  # `Dense` expects a single input

    def build(self, input_shape):
        super().build(input_shape[0])
        self.input_spec = None

    def call(self, inputs, training=None):
        patches, positions = inputs
        return super().call(patches), positions

    def compute_output_spec(self, inputs, training=None):
        patches, positions = inputs
        tokens = KerasTensor((*patches.shape[:-1], self.hidden_size), self.compute_dtype)
        return tokens, KerasTensor(positions.shape, "int32")


@serializable
class NaFlexPositionEmbedding(BaseLayer):
    """Adds a learned position table, resized to each image's grid.

    Maps `((B, S, D), (B, S, 2))`, tokens and their positions, to `(B, S, D)`. The resize is
    bilinear with antialiasing. It multiplies each image's resize weights by the table, in float32.

    Args:
        grid: `(rows, columns)` of the table.

    Reference: SigLIP 2; matches `Siglip2VisionEmbeddings` in transformers.
    """

    def __init__(self, grid, **kwargs):
        super().__init__(**kwargs)
        self._keep_arguments(locals())

    def build(self, input_shape):
        self.pos_embedding = self.add_normal_weight(
            "pos_embedding", (1, math.prod(self.grid), input_shape[0][-1])
        )

    def compute_output_shape(self, input_shape):
        return input_shape[0]

    def call(self, inputs):
        tokens, positions = inputs
        real = ops.max(positions, axis=-1) > 0
        # The rows and columns of each image's grid, (B, 1, 2).
        sides = ops.cast(ops.maximum(ops.max(positions, axis=1, keepdims=True), 1), "float32")
        positions = ops.cast(ops.maximum(positions - 1, 0), "float32")
        rows, columns = (
            linear_weights(positions[..., axis], sides[..., axis], side, ops)
            for axis, side in enumerate(self.grid)
        )
        weights = rows[..., :, None] * columns[..., None, :]  # (B, S, rows, columns)
        weights = ops.reshape(weights, (-1, tokens.shape[1], math.prod(self.grid)))
        embeddings = ops.matmul(weights, ops.cast(self.pos_embedding[0], "float32"))
        return with_zero_padding(tokens + ops.cast(embeddings, tokens.dtype), real)

    def multiply_accumulates(self, input_shape):
        """Returns the multiply-accumulates of one example for the shape `(B, S, D)`."""
        return math.prod(self.grid) * input_shape[1] * input_shape[2]
