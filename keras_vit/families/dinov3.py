"""DINOv3, whose only position embedding is rotary.

The weights listed in this module have no head.
"""

from dataclasses import replace

from keras_vit.checkpoints import names
from keras_vit.checkpoints.dialects import timm, transformers
from keras_vit.checkpoints.dialects.dialect import IGNORED, Dialect, Folder, Packed
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.names import ATTENTION, BLOCK, MLP
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, IMAGENET, B, L, S, hub_row

ROTARY = {"style": "half", "coordinates": "centered", "theta": 100.0}
_GATED = {"mlp": "swiglu"}
_H = {"hidden_size": 1280, "num_layers": 32, "mlp_dim": 5120, "num_heads": 20}
_7B = {"hidden_size": 4096, "num_layers": 40, "mlp_dim": 8192, "num_heads": 32}

_size = Sizes(
    patch_size=16,
    num_registers=4,
    position_embedding="none",
    exact_gelu=True,
    epsilon=1e-5,
    layer_scale=1e-5,
    rotary=ROTARY,
    attention_bias="qvo",
)
DINOv3_S16 = _size("DINOv3-S/16", "21.6M parameters without a head", **S)
DINOv3_Splus16 = _size("DINOv3-S+/16", "28.7M parameters without a head, SwiGLU", **S, **_GATED)
DINOv3_B16 = _size("DINOv3-B/16", "85.7M parameters without a head", **B)
DINOv3_L16 = _size("DINOv3-L/16", "303.1M parameters without a head", **L)
DINOv3_Lplus16 = _size("DINOv3-L+/16", "403.9M parameters without a head, SwiGLU", **L, **_GATED)
DINOv3_Hplus16 = _size("DINOv3-H+/16", "840.6M parameters without a head, SwiGLU", **_H, **_GATED)
DINOv3_7B16 = _size(
    "DINOv3-7B/16",
    "6716.0M parameters without a head, SwiGLU",
    attention_bias="o",
    **_7B,
    **_GATED,
)

# Images are stretched to the model's input size with bilinear interpolation.
_LVD = {**IMAGENET, "resize": "stretch", "interpolation": "bilinear", "crop_fraction": 1.0}
_SAT = {
    **_LVD,
    "mean": [255 * x for x in (0.430, 0.411, 0.296)],
    "std": [255 * x for x in (0.213, 0.156, 0.143)],
}
_FACTS = Facts(exact_gelu=True, epsilon=1e-5, rotary=ROTARY, preprocessing=_LVD)


def _has_rotary(arguments):
    """Returns whether a model has DINOv3's rotary embedding, with any theta."""
    return {**(arguments["rotary"] or {}), "theta": 100.0} == ROTARY


def write_timm_config(arguments):
    """Returns the `Folder` for timm's `Eva` with rotary embeddings; see `Dialect.write_config`."""
    if not _has_rotary(arguments) or arguments["position_embedding"] != "none":
        return None
    is_swiglu = arguments["mlp"] == "swiglu"
    has_bias = "q" in arguments["attention_bias"]
    plus = "plus_" if is_swiglu else ""
    ending = "_qkvb" if has_bias else ""
    # `model_args` sets the sizes. In timm, only the name sets SwiGLU and the biases.
    architecture = f"vit_small_{plus}patch16_dinov3{ending}"
    config = timm.shared_config(arguments, architecture)
    config["model_args"] |= {
        "num_reg_tokens": arguments["num_registers"],
        "use_fc_norm": arguments["pool_norm"],
        "rope_temperature": arguments["rotary"]["theta"],
    }
    return Folder(config, omit=("blocks.{i}.mlp.fc1",) if is_swiglu else ())


def read_timm_config(config):
    """Returns the facts in timm's config.json, with the base of the rotary embedding; see
    `Dialect.read_config`."""
    facts = timm.read_config(config)
    theta = (config.get("model_args") or {}).get("rope_temperature")
    return replace(facts, rotary={**ROTARY, "theta": float(theta)}) if theta else facts


# Some timm models omit the query and value biases, which are zero in the original files.
TIMM = Dialect(
    "timm",
    "blocks.0.gamma_1",
    (
        *timm.TIMM.table,
        ("blocks.{i}.attn.q_bias", f"{ATTENTION}query/bias"),
        ("blocks.{i}.attn.v_bias", f"{ATTENTION}value/bias"),
        ("blocks.{i}.gamma_1", f"{BLOCK}LayerScale_0/scale"),
        ("blocks.{i}.gamma_2", f"{BLOCK}LayerScale_1/scale"),
        ("blocks.{i}.mlp.fc1_g", f"{MLP}Dense_gate"),
        ("blocks.{i}.mlp.fc1_x", f"{MLP}Dense_0"),
    ),
    layout="pytorch",
    facts=replace(_FACTS, head_pool="avg"),  # timm's default pooling
    read_config=read_timm_config,
    write_config=write_timm_config,
    # Other models with rotary embeddings, such as `vit_base_patch16_rope_reg1_gap_256`, have no
    # class token.
    fits=lambda shapes, config: (
        "pos_embed" not in shapes and {"cls_token", "reg_token"} <= shapes.keys()
    ),
)
# The authors' files, converted to safetensors. Four kinds of arrays are ignored: `bias_mask` only
# zeroes the key bias, `rope_embed` contains the rotary frequencies of `ROTARY` up to rounding, and
# `mask_token` and `local_cls_norm` (the norm of small crops) are used only in pre-training.
ORIGINAL = Dialect(
    "original",
    "storage_tokens",
    (
        ("storage_tokens", "register_tokens"),
        ("mask_token", IGNORED),
        ("rope_embed.{rest}", IGNORED),
        ("local_cls_norm.{rest}", IGNORED),
        ("{rest}.bias_mask", IGNORED),
        (
            "blocks.{i}.attn.qkv.bias",
            Packed(f"{ATTENTION}query/bias", None, f"{ATTENTION}value/bias"),
        ),
        *timm.LAYER_SCALES,
        ("blocks.{i}.mlp.w1", f"{MLP}Dense_gate"),
        ("blocks.{i}.mlp.w2", f"{MLP}Dense_0"),
        ("blocks.{i}.mlp.w3", f"{MLP}Dense_1"),
        *timm.TIMM.table,
    ),
    layout="pytorch",
    facts=_FACTS,
)


def read_config(config):
    """Returns the facts in a config.json of transformers; see `Dialect.read_config`."""
    theta = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta")
    if config.get("use_gated_mlp"):
        if config.get("hidden_act", "silu") != "silu":
            raise ValueError(
                f"`hidden_act` must be silu with `use_gated_mlp`, not {config['hidden_act']!r}"
            )
        # The SiLU is part of "swiglu". `transformers.read_config` accepts only GELUs.
        config = {**config, "hidden_act": "gelu"}
    rotary = {**ROTARY, "theta": float(theta)} if theta else None
    return replace(transformers.read_config(config), rotary=rotary)


def write_config(arguments):
    """Returns the `Folder` for `DINOv3ViTModel`; see `Dialect.write_config`."""
    is_swiglu = arguments["mlp"] == "swiglu"
    if not _has_rotary(arguments) or arguments["include_top"]:
        return None
    config = transformers.shared_config(
        arguments,
        "dinov3_vit",
        "DINOv3ViTModel",
        use_gated_mlp=is_swiglu,
        num_register_tokens=arguments["num_registers"],
        rope_theta=arguments["rotary"]["theta"],
        query_bias="q" in arguments["attention_bias"],
        key_bias="k" in arguments["attention_bias"],
        value_bias="v" in arguments["attention_bias"],
        proj_bias="o" in arguments["attention_bias"],
        mlp_bias=arguments["mlp_bias"],
        **({"hidden_act": "silu"} if is_swiglu else {}),
    )
    return Folder(config)


_LAYER = "{tower}layer.{i}."
HUGGING_FACE = Dialect(
    "huggingface",
    "{tower}layer.0.layer_scale1.lambda1",
    (
        ("embeddings.mask_token", IGNORED),
        ("embeddings.cls_token", names.CLASS_TOKEN),
        ("embeddings.register_tokens", "register_tokens"),
        ("embeddings.patch_embeddings", "embedding"),
        (f"{_LAYER}norm1", f"{BLOCK}LayerNorm_0"),
        (f"{_LAYER}norm2", f"{BLOCK}LayerNorm_1"),
        (f"{_LAYER}layer_scale1.lambda1", f"{BLOCK}LayerScale_0/scale"),
        (f"{_LAYER}layer_scale2.lambda1", f"{BLOCK}LayerScale_1/scale"),
        *transformers.projections(f"{_LAYER}attention."),
        (f"{_LAYER}attention.o_proj", f"{ATTENTION}out"),
        (f"{_LAYER}mlp.gate_proj", f"{MLP}Dense_gate"),
        (f"{_LAYER}mlp.up_proj", f"{MLP}Dense_0"),
        (f"{_LAYER}mlp.down_proj", f"{MLP}Dense_1"),
        ("norm", "Transformer/encoder_norm"),
    ),
    layout="pytorch",
    choices={"tower": ("", "model.")},
    facts=_FACTS,
    read_config=read_config,
    write_config=write_config,
)


def _rows():
    for collection, preprocessing, sizes in (
        ("lvd1689m", _LVD, ("S", "S+", "B", "L", "H+", "7B")),
        ("sat493m", _SAT, ("L", "7B")),
    ):
        for size in sizes:
            plus = "plus" if size.endswith("+") else ""
            name = f"dinov3-vit{size.lower().rstrip('+')}16{plus}-pretrain-{collection}"
            model = f"DINOv3-{size}/16"
            yield hub_row(collection, f"facebook/{name}", model, 0, 224, preprocessing)


FAMILY = _size.register(
    identity=(*IDENTITY, "mlp", "num_registers", "layer_scale", "position_embedding"),
    dialects=(TIMM, ORIGINAL, HUGGING_FACE),
    published=tuple(_rows()),
    reference="https://github.com/facebookresearch/dinov3",
)
