"""The encoder of MAE. Its sine-cosine position embeddings are stored in the files."""

from dataclasses import replace

from keras_vit.checkpoints.dialects import transformers
from keras_vit.checkpoints.dialects.dialect import IGNORED
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, IMAGENET, WORDS, B, H, L, timm_row

_size = Sizes(exact_gelu=True, position_resampling="bicubic")
MAE_B16 = _size("MAE-B/16", "85.8M parameters without a head", patch_size=16, **B)
MAE_L16 = _size("MAE-L/16", "303.3M parameters without a head", patch_size=16, **L)
MAE_H14 = _size("MAE-H/14", "630.8M parameters without a head", patch_size=14, **H)

# timm's files and the authors' files (converted to safetensors) have timm's dialect for plain ViTs.
HUGGING_FACE = replace(
    transformers.HUGGING_FACE,
    table=(("decoder.{rest}", IGNORED), *transformers.HUGGING_FACE.table),
    facts=replace(transformers.HUGGING_FACE.facts, preprocessing=IMAGENET),
    fits=lambda shapes, config: (
        config.get("model_type") == "vit_mae" or "decoder.mask_token" in shapes
    ),
)

FAMILY = _size.register(
    identity=IDENTITY,
    dialects=(HUGGING_FACE,),
    published=tuple(
        timm_row("mae", f"vit_{WORDS[size]}_patch{patch}_224.mae", f"MAE-{size}/{patch}", 0, 224)
        for size, patch in (("B", 16), ("L", 16), ("H", 14))
    ),
    reference="https://github.com/facebookresearch/mae",
)
