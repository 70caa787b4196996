"""The Vision Transformer that predicts corrupted patches."""

from typing import Any

from keras import KerasTensor

from keras_vit.layers.base import serializable
from keras_vit.layers.patch_masking import PatchMasking
from keras_vit.models.image_model import VARIANTS, keep
from keras_vit.models.vision_transformer import VisionTransformer


@serializable
class MaskedPatchVisionTransformer(VisionTransformer):
    """A Vision Transformer that corrupts some of its patch embeddings, see `PatchMasking`.

    Args:
        masking_rate: fraction of the patch embeddings to corrupt, in (0, 1].
        **kwargs: arguments of `VisionTransformer`.

    Returns: `(output, corrupted)`: the outputs of `VisionTransformer`, and `(B, N)`, 1 for a
        corrupted patch.
    """

    # The name of the constructor in checkpoints, which do not store the corruption.
    saved_as = "VisionTransformer"

    def __init__(self, *, masking_rate: float = 0.5, dtype: Any = None, **kwargs: Any) -> None:
        masking = PatchMasking(masking_rate, name="mask_patches", dtype=dtype)
        keep(self, masking=masking)
        super().__init__(dtype=dtype, **kwargs)

    def own_arguments(self) -> dict[str, Any]:
        return {"masking_rate": self.masking.rate}

    def forward(self, images: KerasTensor, training: bool | None = None) -> tuple:
        tokens, corrupted = self._embed(images, training)
        return self.classify(self.pool(self.norm(self.encode(tokens, training)))), corrupted

    def embed(self, images: KerasTensor, training: bool | None = None) -> KerasTensor:
        return self._embed(images, training)[0]

    def _embed(self, images, training):
        patches, corrupted = self.masking(self.embed_patches(images), training=training)
        return self.add_tokens(patches, training), corrupted


VARIANTS["masking_rate"] = MaskedPatchVisionTransformer
