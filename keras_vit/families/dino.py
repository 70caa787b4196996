"""DINO, version 1."""

from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, WORDS, B, S, timm_row

_size = Sizes(exact_gelu=True, position_resampling="bicubic_offset")
DINO_S16 = _size("DINO-S/16", "21.7M parameters without a head", patch_size=16, **S)
DINO_S8 = _size("DINO-S/8", "21.7M parameters without a head", patch_size=8, **S)
DINO_B16 = _size("DINO-B/16", "85.8M parameters without a head", patch_size=16, **B)
DINO_B8 = _size("DINO-B/8", "85.8M parameters without a head", patch_size=8, **B)

# This family defines no dialects. Files from timm and the authors (converted to safetensors) have
# timm's dialect for plain ViTs, and files from Hugging Face have the dialect of transformers for
# plain ViTs.
FAMILY = _size.register(
    identity=IDENTITY,
    published=tuple(
        timm_row("dino", f"vit_{WORDS[size]}_patch{patch}_224.dino", f"DINO-{size}/{patch}", 0, 224)
        for size in "SB"
        for patch in (16, 8)
    ),
    reference="https://github.com/facebookresearch/dino",
)
