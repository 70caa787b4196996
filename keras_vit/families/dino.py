"""DINO, version 1."""

from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, B, S, timm_row

_PARTS = {"exact_gelu": True, "position_resampling": "bicubic_offset"}
_size = Sizes()
DINO_S16 = _size("DINO-S/16", "21.7M parameters without a head", patch_size=16, **_PARTS, **S)
DINO_S8 = _size("DINO-S/8", "21.7M parameters without a head", patch_size=8, **_PARTS, **S)
DINO_B16 = _size("DINO-B/16", "85.8M parameters without a head", patch_size=16, **_PARTS, **B)
DINO_B8 = _size("DINO-B/8", "85.8M parameters without a head", patch_size=8, **_PARTS, **B)

# This family defines no dialects. Files from timm and the authors (converted to safetensors) have
# timm's dialect for plain ViTs, and files from Hugging Face have the dialect of transformers for
# plain ViTs.
FAMILY = _size.register(
    identity=IDENTITY,
    published=tuple(
        timm_row("dino", f"vit_{word}_patch{side}_224.dino", f"DINO-{letter}/{side}", 0, 224)
        for letter, word in (("S", "small"), ("B", "base"))
        for side in (16, 8)
    ),
    reference="https://github.com/facebookresearch/dino",
)
