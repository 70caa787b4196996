"""DINO, version 1."""

from keras_vit.families import vit
from keras_vit.families.registry import Sizes
from keras_vit.families.vit import B, S
from keras_vit.models.vision_transformer import VisionTransformer

__all__ = ["DINO_B8", "DINO_B16", "DINO_S8", "DINO_S16"]

_PARTS = {"exact_gelu": True, "position_resampling": "bicubic_offset"}
_size = Sizes(VisionTransformer)
DINO_S16 = _size("DINO-S/16", "21.7M parameters", patch_size=16, **_PARTS, **S)
DINO_S8 = _size("DINO-S/8", "21.7M parameters", patch_size=8, **_PARTS, **S)
DINO_B16 = _size("DINO-B/16", "85.8M parameters", patch_size=16, **_PARTS, **B)
DINO_B8 = _size("DINO-B/8", "85.8M parameters", patch_size=8, **_PARTS, **B)


# This family defines no formats: files from timm, Hugging Face and the authors (converted to safetensors) use the same
# weight names as plain ViTs.
def _rows():
    for letter, word in (("S", "small"), ("B", "base")):
        for side in (16, 8):
            name = f"vit_{word}_patch{side}_224.dino"
            yield vit.timm_row("dino", name, f"DINO-{letter}/{side}", 0, 224)


FAMILY = _size.register(
    identity=vit.IDENTITY,
    published=tuple(_rows()),
    reference="https://github.com/facebookresearch/dino",
)
