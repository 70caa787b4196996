"""The encoder of MAE. Its sine-cosine position embeddings are stored in the files."""

import dataclasses

from keras_vit.families import vit
from keras_vit.families.registry import Sizes
from keras_vit.families.vit import IMAGENET, B, H, L

_PARTS = {"exact_gelu": True, "position_resampling": "bicubic"}
_size = Sizes()
MAE_B16 = _size("MAE-B/16", "85.8M parameters without a head", patch_size=16, **_PARTS, **B)
MAE_L16 = _size("MAE-L/16", "303.3M parameters without a head", patch_size=16, **_PARTS, **L)
MAE_H14 = _size("MAE-H/14", "630.8M parameters without a head", patch_size=14, **_PARTS, **H)

# timm's files and the authors' files (converted to safetensors) have the format `vit.TIMM`.
HUGGING_FACE = dataclasses.replace(
    vit.HUGGING_FACE,
    renames=((r"decoder\..*", ""), *vit.HUGGING_FACE.renames),
    facts={**vit.HUGGING_FACE.facts, "preprocessing": IMAGENET},
    fits=lambda shapes, config: config.get("model_type") == "vit_mae" or "decoder.mask_token" in shapes,
)

FAMILY = _size.register(
    identity=vit.IDENTITY,
    formats=(HUGGING_FACE,),
    published=tuple(
        vit.timm_row("mae", f"vit_{word}_patch{size[2:]}_224.mae", f"MAE-{size}", 0, 224)
        for size, word in (("B/16", "base"), ("L/16", "large"), ("H/14", "huge"))
    ),
    reference="https://github.com/facebookresearch/mae",
)
