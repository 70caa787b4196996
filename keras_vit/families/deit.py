"""Distilled DeiT and DeiT-III. DeiT without a distillation token loads as a plain ViT."""

import itertools
from dataclasses import replace

from keras_vit.checkpoints import names
from keras_vit.checkpoints.dialects import timm, transformers
from keras_vit.checkpoints.dialects.dialect import IGNORED, Alias, Folder
from keras_vit.checkpoints.names import BLOCK
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import (
    IDENTITY,
    IMAGENET,
    TI,
    TIMM_IMAGENET,
    WORDS,
    B,
    H,
    L,
    S,
    big_vision_row,
    timm_row,
)

M = {"hidden_size": 512, "num_layers": 12, "mlp_dim": 2048, "num_heads": 8}
_DISTILLED = {"distilled": True, "class_token_position": True, "patch_size": 16}
_DEIT3 = {"layer_scale": 1e-6, "class_token_position": False}

_size = Sizes(exact_gelu=True, position_resampling="bicubic")
DeiT_Ti16_distilled = _size(
    "DeiT-Ti/16-distilled", "5.5M parameters without a head", **_DISTILLED, **TI
)
DeiT_S16_distilled = _size(
    "DeiT-S/16-distilled", "21.7M parameters without a head", **_DISTILLED, **S
)
DeiT_B16_distilled = _size(
    "DeiT-B/16-distilled", "85.8M parameters without a head", **_DISTILLED, **B
)
DeiT3_S16 = _size("DeiT3-S/16", "21.7M parameters without a head", patch_size=16, **_DEIT3, **S)
DeiT3_M16 = _size("DeiT3-M/16", "38.3M parameters without a head", patch_size=16, **_DEIT3, **M)
DeiT3_B16 = _size("DeiT3-B/16", "85.8M parameters without a head", patch_size=16, **_DEIT3, **B)
DeiT3_L16 = _size("DeiT3-L/16", "303.3M parameters without a head", patch_size=16, **_DEIT3, **L)
DeiT3_H14 = _size("DeiT3-H/14", "630.8M parameters without a head", patch_size=14, **_DEIT3, **H)

TIMM_DISTILLED = replace(
    timm.TIMM,
    write_config=lambda arguments: timm.write_config(arguments, "deit_base_distilled_patch16_224"),
    marker="dist_token",
    table=(
        ("dist_token", names.DISTILLATION_TOKEN),
        ("head_dist", "head/distillation"),
        *timm.TIMM.table,
    ),
    facts=replace(timm.TIMM.facts, preprocessing=TIMM_IMAGENET),
)
# LayerScale is `gamma_1` in the original DeiT-III files and `ls1.gamma` in timm's. DINOv2 files
# also contain `ls1.gamma`, but they contain registers, or a number of positions that is not a
# square.
TIMM_DEIT3 = replace(
    timm.TIMM,
    marker=("blocks.0.ls1.gamma", "blocks.0.gamma_1"),
    table=(
        *timm.LAYER_SCALES,
        ("blocks.{i}.gamma_1", Alias(f"{BLOCK}LayerScale_0/scale")),
        ("blocks.{i}.gamma_2", Alias(f"{BLOCK}LayerScale_1/scale")),
        *timm.TIMM.table,
    ),
    facts=replace(timm.TIMM.facts, preprocessing=TIMM_IMAGENET),
    fits=lambda shapes, config: (
        "reg_token" not in shapes and shapes.get("pos_embed", (0, 2))[1] ** 0.5 % 1 == 0
    ),
)


def write_config(arguments):
    """Returns the `Folder` for distilled DeiT models of transformers; see
    `Dialect.write_config`."""
    if not arguments["distilled"]:
        return None
    name = "DeiTForImageClassificationWithTeacher" if arguments["include_top"] else "DeiTModel"
    config = transformers.shared_config(arguments, "deit", name, qkv_bias=True)
    return Folder(config, tower="deit." if arguments["include_top"] else "")


HUGGING_FACE = replace(
    transformers.HUGGING_FACE,
    marker="{tower}embeddings.distillation_token",
    table=(
        ("{tower}embeddings.distillation_token", names.DISTILLATION_TOKEN),
        ("{tower}pooler.dense", IGNORED),  # `DeiTModel`'s pooler reads only the class token
        ("cls_classifier", "head"),
        ("distillation_classifier", "head/distillation"),
        *transformers.HUGGING_FACE.table,
    ),
    choices={**transformers.HUGGING_FACE.choices, "tower": ("", "deit.")},
    facts=replace(transformers.HUGGING_FACE.facts, preprocessing=IMAGENET),
    write_config=write_config,
)
# The head of `DeiTForImageClassification` is not supported, because it ignores the distillation
# token.
HUGGING_FACE_TOKEN = replace(
    HUGGING_FACE,
    facts=replace(
        HUGGING_FACE.facts, head_reads="the class token of a model with a distillation token"
    ),
    fits=lambda shapes, config: "classifier.weight" in shapes,
    write_config=None,
)


def _rows():
    for size in ("Ti", "S", "B"):
        for side in (224, 384) if size == "B" else (224,):
            name = f"deit_{WORDS[size]}_distilled_patch16_{side}.fb_in1k"
            fields = {**IMAGENET, "crop_fraction": 0.9 if side == 224 else 1.0}
            yield timm_row("distilled", name, f"DeiT-{size}/16-distilled", 1000, side, fields)
    for size in "SMBLH":
        patch = 14 if size == "H" else 16
        for side in (224, 384) if size in "SBL" else (224,):
            for collection in ("in1k", "in22k_ft_in1k"):
                name = f"deit3_{WORDS[size]}_patch{patch}_{side}.fb_{collection}"
                is_small = side == 224 and collection == "in1k"
                fields = {**IMAGENET, "crop_fraction": 0.9 if is_small else 1.0}
                yield timm_row(
                    f"fb_{collection}", name, f"DeiT3-{size}/{patch}", 1000, side, fields
                )
    # big_vision's copies of DeiT-III are plain ViTs for images in [-1, 1]; LayerScale is folded
    # into other weights.
    for size, side, data in itertools.product("SBL", (224, 384), ("1k", "21k")):
        path = f"zoo/deit3/bv_deit_3_{WORDS[size]}_{side}_{data}"
        yield big_vision_row("deit3", path, f"ViT-{size}/16", 1000, side)


FAMILY = _size.register(
    identity=(*IDENTITY, "distilled", "layer_scale", "class_token_position", "num_registers"),
    dialects=(TIMM_DISTILLED, TIMM_DEIT3, HUGGING_FACE, HUGGING_FACE_TOKEN),
    published=tuple(_rows()),
    reference="https://github.com/facebookresearch/deit",
)
