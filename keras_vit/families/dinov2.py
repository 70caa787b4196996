"""DINOv2, with and without register tokens. The weights listed in this module have no head."""

from dataclasses import replace

from keras_vit.checkpoints.dialects import timm, transformers
from keras_vit.checkpoints.dialects.dialect import IGNORED, Alias, Folder, NotSupportedError, Packed
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.dialects.transformers import LAYER
from keras_vit.checkpoints.names import BLOCK, MLP
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, IMAGENET, WORDS, B, L, S, hub_row

G = {"hidden_size": 1536, "num_layers": 40, "mlp_dim": 4096, "num_heads": 24, "mlp": "swiglu"}
_PLAIN = {"position_resampling": "bicubic_offset"}
_REG = {"num_registers": 4, "position_resampling": "bicubic_antialias"}

_size = Sizes(patch_size=14, exact_gelu=True, layer_scale=1e-5)
DINOv2_S14 = _size("DINOv2-S/14", "21.6M parameters without a head", **_PLAIN, **S)
DINOv2_B14 = _size("DINOv2-B/14", "85.7M parameters without a head", **_PLAIN, **B)
DINOv2_L14 = _size("DINOv2-L/14", "303.2M parameters without a head", **_PLAIN, **L)
DINOv2_g14 = _size("DINOv2-g/14", "1134.8M parameters without a head", **_PLAIN, **G)
DINOv2_S14_reg = _size(
    "DINOv2-S/14-reg", "21.6M parameters without a head, 4 registers", **_REG, **S
)
DINOv2_B14_reg = _size(
    "DINOv2-B/14-reg", "85.7M parameters without a head, 4 registers", **_REG, **B
)
DINOv2_L14_reg = _size(
    "DINOv2-L/14-reg", "303.2M parameters without a head, 4 registers", **_REG, **L
)
DINOv2_g14_reg = _size(
    "DINOv2-g/14-reg", "1134.8M parameters without a head, 4 registers", **_REG, **G
)

# For 224-pixel inputs, the shorter side is resized to 256 before the center crop.
_PREPROCESSING = {**IMAGENET, "crop_fraction": 224 / 256}
_FACTS = Facts(exact_gelu=True, epsilon=1e-6, preprocessing=_PREPROCESSING)
_GATE_AND_VALUES = Packed(f"{MLP}Dense_gate", f"{MLP}Dense_0")
TIMM = replace(
    timm.TIMM,
    marker="blocks.0.ls1.gamma",
    table=(
        *timm.TIMM.table,
        ("register_tokens", Alias("register_tokens")),
        ("mask_token", IGNORED),  # used only in pre-training
        *timm.LAYER_SCALES,
        # The authors' files use other names for the layers of a SwiGLU.
        ("blocks.{i}.mlp.w12", Alias(_GATE_AND_VALUES)),
        ("blocks.{i}.mlp.w3", Alias(f"{MLP}Dense_1")),
    ),
    facts=replace(_FACTS, position_resampling="bicubic_antialias"),
)
# timm uses the same names for SwiGLU and plain MLPs. In a SwiGLU, `mlp.fc1` packs the gate and the
# values.
TIMM_SWIGLU = replace(
    TIMM,
    table=(("blocks.{i}.mlp.fc1", _GATE_AND_VALUES), *TIMM.table),
    read_config=lambda config: timm.read_config(config, ("silu",)),
    fits=lambda shapes, config: (
        shapes.get("blocks.0.mlp.fc1.weight", (0,))[0]
        == 2 * shapes.get("blocks.0.mlp.fc2.weight", (0, -1))[1]
    ),
)
# The authors' files, converted to safetensors, contain a mask token. Files with registers load as
# `TIMM`, which resamples their position embeddings correctly.
ORIGINAL = replace(
    TIMM,
    name="original",
    write_config=None,
    marker="mask_token",
    facts=replace(_FACTS, position_resampling="bicubic_offset"),
    fits=lambda shapes, config: "register_tokens" not in shapes and "blocks.0.ls1.gamma" in shapes,
)
_PLAIN_LAYERS = (f"{LAYER}mlp.fc1", f"{LAYER}mlp.fc2")
_SWIGLU_LAYERS = (f"{LAYER}mlp.weights_in", f"{LAYER}mlp.weights_out")


def write_config(arguments):
    """Returns the `Folder` for `Dinov2Model` or `Dinov2WithRegistersModel`, or None for a model
    that neither can represent; see `Dialect.write_config`."""
    if arguments["layer_scale"] is None or arguments["include_top"] or arguments["rotary"]:
        return None
    units = arguments["mlp_dim"]
    is_swiglu = arguments["mlp"] == "swiglu"
    if is_swiglu:  # transformers multiplies the width by 2/3 and rounds up to a multiple of 8
        if units % 8:
            raise NotSupportedError("transformers requires a SwiGLU of a multiple of 8 units")
        units = units // 2 * 3
    ratio, rest = divmod(units, arguments["hidden_size"])
    if rest:  # transformers rounds the product of the ratio and the hidden size down
        ratio = (units + 0.5) / arguments["hidden_size"]
    count = arguments["num_registers"]
    config = transformers.shared_config(
        arguments,
        "dinov2_with_registers" if count else "dinov2",
        "Dinov2WithRegistersModel" if count else "Dinov2Model",
        square=True,
        qkv_bias=True,
        use_mask_token=False,
        use_swiglu_ffn=is_swiglu,
        mlp_ratio=ratio,
        **({"num_register_tokens": count} if count else {}),
    )
    class_row = "" if arguments["class_token_position"] else "zeros"
    omit = _PLAIN_LAYERS if is_swiglu else _SWIGLU_LAYERS
    return Folder(config, omit=omit, class_row=class_row)


HUGGING_FACE = replace(
    transformers.HUGGING_FACE,
    marker=("{tower}encoder.layer.0.layer_scale1.lambda1", "{tower}layers.0.layer_scale1.lambda1"),
    table=(
        *transformers.EMBEDDINGS,
        ("{tower}embeddings.register_tokens", "register_tokens"),
        (f"{LAYER}norm1", f"{BLOCK}LayerNorm_0"),
        (f"{LAYER}norm2", f"{BLOCK}LayerNorm_1"),
        *transformers.ATTENTIONS,
        (f"{LAYER}layer_scale1.lambda1", f"{BLOCK}LayerScale_0/scale"),
        (f"{LAYER}layer_scale2.lambda1", f"{BLOCK}LayerScale_1/scale"),
        (f"{LAYER}mlp.fc1", f"{MLP}Dense_0"),
        (f"{LAYER}mlp.fc2", f"{MLP}Dense_1"),
        (f"{LAYER}mlp.weights_in", _GATE_AND_VALUES),
        (f"{LAYER}mlp.weights_out", f"{MLP}Dense_1"),
        *transformers.OUTPUTS,
    ),
    # The heads of `Dinov2ForImageClassification` and `Dinov2WithRegistersForImageClassification`
    # are not supported.
    facts=replace(
        _FACTS,
        head_reads="the class token and the mean of the patches, concatenated",
        class_row=True,
        position_resampling="bicubic",
    ),
    write_config=write_config,
)
HUGGING_FACE_REG = replace(
    HUGGING_FACE,
    facts=replace(HUGGING_FACE.facts, position_resampling="bicubic_antialias"),
    fits=lambda shapes, config: any(name.endswith("embeddings.register_tokens") for name in shapes),
)


def _rows():
    for size in "SBLg":
        for kind, ending in (("dinov2", ""), ("dinov2-with-registers", "-reg")):
            repository = f"facebook/{kind}-{WORDS[size]}"
            model = f"DINOv2-{size}/14{ending}"
            yield hub_row("lvd142m", repository, model, 0, 518, _PREPROCESSING)


FAMILY = _size.register(
    identity=(*IDENTITY, "layer_scale", "num_registers", "mlp"),
    dialects=(TIMM, TIMM_SWIGLU, ORIGINAL, HUGGING_FACE, HUGGING_FACE_REG),
    published=tuple(_rows()),
    reference="https://github.com/facebookresearch/dinov2",
)
