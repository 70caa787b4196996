"""DINOv2, with and without register tokens. The weights listed in this module have no head."""

import dataclasses

from keras_vit.checkpoints.registry import PublishedWeights
from keras_vit.families import vit
from keras_vit.families.registry import Sizes
from keras_vit.families.vit import IMAGENET, B, L, S

G = {"hidden_size": 1536, "num_layers": 40, "mlp_dim": 4096, "num_heads": 24, "mlp": "swiglu"}
_PARTS = {"patch_size": 14, "exact_gelu": True, "layer_scale": 1e-5}
_PLAIN = {**_PARTS, "position_resampling": "bicubic_offset"}
_REG = {**_PARTS, "num_registers": 4, "position_resampling": "bicubic_antialias"}

_size = Sizes()
DINOv2_S14 = _size("DINOv2-S/14", "21.6M parameters without a head", **_PLAIN, **S)
DINOv2_B14 = _size("DINOv2-B/14", "85.7M parameters without a head", **_PLAIN, **B)
DINOv2_L14 = _size("DINOv2-L/14", "303.2M parameters without a head", **_PLAIN, **L)
DINOv2_g14 = _size("DINOv2-g/14", "1134.8M parameters without a head", **_PLAIN, **G)
DINOv2_S14_reg = _size("DINOv2-S/14-reg", "21.6M parameters without a head, 4 registers", **_REG, **S)
DINOv2_B14_reg = _size("DINOv2-B/14-reg", "85.7M parameters without a head, 4 registers", **_REG, **B)
DINOv2_L14_reg = _size("DINOv2-L/14-reg", "303.2M parameters without a head, 4 registers", **_REG, **L)
DINOv2_g14_reg = _size("DINOv2-g/14-reg", "1134.8M parameters without a head, 4 registers", **_REG, **G)

# For 224-pixel inputs, the shorter side is resized to 256 before the center crop.
_PREPROCESSING = {**IMAGENET, "crop_fraction": 224 / 256}
_FACTS = {"exact_gelu": True, "epsilon": 1e-6, "preprocessing": _PREPROCESSING}
_BLOCK = r"blocks\.(\d+)\."
TIMM = dataclasses.replace(
    vit.TIMM,
    marker=r"blocks\.0\.ls1\.gamma",
    renames=(
        *vit.TIMM.renames,
        (r"register_tokens", "register_tokens/register_tokens"),
        (r"mask_token", ""),  # used only in pre-training
        (_BLOCK + r"ls([12])\.gamma", r"encoderblock_\1/layer_scale_\2/scale"),
        (_BLOCK + r"mlp\.w12", r"encoderblock_\1/mlp_gate|mlp_1"),
        (_BLOCK + r"mlp\.w3", r"encoderblock_\1/mlp_2"),
    ),
    facts={**_FACTS, "position_resampling": "bicubic_antialias"},
)
# timm uses the same names for SwiGLU and plain MLPs. In a SwiGLU, `mlp.fc1` packs the gate and the values.
TIMM_SWIGLU = dataclasses.replace(
    TIMM,
    renames=((_BLOCK + r"mlp\.fc1", r"encoderblock_\1/mlp_gate|mlp_1"), *TIMM.renames),
    read_config=lambda config: vit.read_timm_config(config, ("silu",)),
    fits=lambda shapes, config: (
        shapes.get("blocks.0.mlp.fc1.weight", (0,))[0] == 2 * shapes.get("blocks.0.mlp.fc2.weight", (0, -1))[1]
    ),
)
# The authors' files, converted to safetensors, contain a mask token. Files with registers load as `TIMM`, which
# resamples their position embeddings correctly.
ORIGINAL = dataclasses.replace(
    TIMM,
    name="original",
    write_config=None,
    marker="mask_token",
    facts={**_FACTS, "position_resampling": "bicubic_offset"},
    fits=lambda shapes, config: "register_tokens" not in shapes and "blocks.0.ls1.gamma" in shapes,
)


def write_huggingface_config(arguments):
    """Returns the config of `Dinov2Model` or `Dinov2WithRegistersModel`, and options; see `Format.write_config`."""
    if arguments["layer_scale"] is None or arguments["include_top"] or arguments["rotary"]:
        return None, {}
    ratio, is_swiglu = arguments["mlp_dim"] / arguments["hidden_size"], arguments["mlp"] == "swiglu"
    if is_swiglu:  # transformers multiplies the width by 2/3 and rounds up to a multiple of 8
        ratio *= 1.5
    count = arguments["num_registers"]
    config = vit.huggingface_config(
        arguments,
        "dinov2_with_registers" if count else "dinov2",
        "Dinov2WithRegistersModel" if count else "Dinov2Model",
        square=True,
        qkv_bias=True,
        use_mask_token=False,
        use_swiglu_ffn=is_swiglu,
        mlp_ratio=int(ratio) if ratio == int(ratio) else ratio,
        **({"num_register_tokens": count} if count else {}),
    )
    skip = r".*layernorm_.*|.*\d\.(intermediate|output)\.dense" + (r"|.*mlp\.fc[12]" if is_swiglu else "")
    return config, {"add_row": "" if arguments["class_token_position"] else "zeros", "skip": skip}


# The heads of `Dinov2ForImageClassification` and `Dinov2WithRegistersForImageClassification` are not supported.
_HEAD = {"head_reads": "the class token and the mean of the patches, concatenated"}
HUGGING_FACE = dataclasses.replace(
    vit.HUGGING_FACE,
    marker=vit.LAYER.replace(r"(\d+)", "0") + r"layer_scale1\.lambda1",
    renames=(
        *vit.HUGGING_FACE.renames,
        (vit.VIT + r"embeddings\.register_tokens", "register_tokens/register_tokens"),
        (vit.LAYER + r"norm([12])", r"encoderblock_\1/norm_\2"),
        (vit.LAYER + r"layer_scale([12])\.lambda1", r"encoderblock_\1/layer_scale_\2/scale"),
        (vit.LAYER + r"mlp\.fc([12])", r"encoderblock_\1/mlp_\2"),
        (vit.LAYER + r"mlp\.weights_in", r"encoderblock_\1/mlp_gate|mlp_1"),
        (vit.LAYER + r"mlp\.weights_out", r"encoderblock_\1/mlp_2"),
    ),
    facts={**_FACTS, **_HEAD, "class_row": True, "position_resampling": "bicubic"},
    write_config=write_huggingface_config,
)
HUGGING_FACE_REG = dataclasses.replace(
    HUGGING_FACE,
    facts={**HUGGING_FACE.facts, "position_resampling": "bicubic_antialias"},
    fits=lambda shapes, config: any(name.endswith("embeddings.register_tokens") for name in shapes),
)


def _rows():
    for letter, word in (("S", "small"), ("B", "base"), ("L", "large"), ("g", "giant")):
        for repository, ending in (("dinov2", ""), ("dinov2-with-registers", "-reg")):
            name = f"{repository}-{word}"
            url, model = f"https://huggingface.co/facebook/{name}", f"DINOv2-{letter}/14{ending}"
            fields = {**_PREPROCESSING, "library": "transformers"}
            yield PublishedWeights("lvd142m", name, model, url, 0, 518, preprocessing=fields)


FAMILY = _size.register(
    identity=(*vit.IDENTITY, "layer_scale", "num_registers", "mlp"),
    formats=(TIMM, TIMM_SWIGLU, ORIGINAL, HUGGING_FACE, HUGGING_FACE_REG),
    published=tuple(_rows()),
    reference="https://github.com/facebookresearch/dinov2",
)
