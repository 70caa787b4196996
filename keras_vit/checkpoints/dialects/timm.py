"""timm's dialect for Vision Transformers, and the parts of it that other families share."""

import re
import warnings
from dataclasses import replace

from keras_vit.checkpoints import names
from keras_vit.checkpoints.dialects.dialect import Dialect, Folder, Packed, gelu_of
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.names import ATTENTION, BLOCK, MLP

# Names of the supported `model_args` of timm. The arrays determine some of them, the families read
# others from the config, and the rest do not affect the output.
_ARGUMENTS = re.compile(
    r"(img|patch)_size|in_chans|num_(classes|heads|reg_tokens)|global_pool|embed_dim|depth|"
    r"mlp_ratio|act_layer|(qkv|proj)_bias|qkv_fused|qk_norm|scale_(attn|mlp)(_norm|_inner)?|"
    r"init_values|(reg|class)_tokens?|no_embed_class|(pre|final|fc|use_fc)_norm|norm_layer|"
    r"swiglu_(mlp|align_to)|pool_include_prefix|ref_feat_shape|(dynamic|strict)_img_(size|pad)|"
    r"rope_temperature|\w*drop_(path_)?rate|weight_init|fix_init|head_init_scale"
)
# Names of unsupported timm models. Their arrays do not reveal, for example, post-norms or rotary
# embeddings.
_OTHERS = r".*_rpn_|.*_rope_|vit_pe_|.*_sapiens2|eva_giant_|eva02_enormous_"
# Names of timm models that use the tanh approximation of the GELU.
_TANH = r"vit_(so400m_patch16_siglip|giantopt|base_patch32_siglip|large_patch16_siglip_(gap_)?512)"
# Numbers of heads, by the start of timm's name, that differ from those of the size with equal
# dimensions, or that have no such size.
_HEADS = {"vit_base_patch16_gap_": 16, "vit_giant_patch16_radio": 24, "vit_so400m_patch14_reg1": 16}


def read_config(config, activations=("gelu", "gelu_tanh", "quick_gelu")):
    """Returns the facts in timm's config.json; see `Dialect.read_config`."""
    arguments = config.get("model_args") or {}
    name = config.get("architecture", "")
    pool = arguments.get("global_pool", config.get("global_pool"))
    activation = arguments.get("act_layer")
    norm = arguments.get("norm_layer")
    _check_supported(name, arguments, pool, activations)
    pretrained = config.get("pretrained_cfg") or {}
    # The name of a model implies some defaults.
    heads = next((heads for start, heads in _HEADS.items() if name.startswith(start)), None)
    facts = Facts(
        num_heads=arguments.get("num_heads") or heads,
        image_size=arguments.get("img_size") or (pretrained.get("input_size") or [])[1:],
        pool=pool,
    )
    # CLIP, DINOv3 and LingBot models get the epsilon of their dialect.
    if norm or (name and not re.search("_clip_|_dinov3|_lingbot", name)):
        facts = replace(facts, epsilon=1e-5 if name.startswith("beit3_") and not norm else 1e-6)
    if activation == "quick_gelu":
        facts = replace(facts, mlp=activation)
    elif name or activation:
        is_exact = activation == "gelu" if activation else not re.match(_TANH, name)
        facts = replace(facts, exact_gelu=is_exact)
    if "mean" in pretrained and "std" in pretrained:
        facts = replace(facts, preprocessing=_read_preprocessing(pretrained))
    return facts


def _check_supported(name, arguments, pool, activations):
    """Raises a `ValueError` for a model that cannot be built from its config."""
    if pool not in (None, "", "token", "avg", "map") or arguments.get("pool_include_prefix"):
        raise ValueError(
            "`global_pool` must be token, avg, map or empty, and `pool_include_prefix` must not "
            f"be set; `global_pool` is {pool!r}"
        )
    if re.match(_OTHERS, name):
        raise ValueError(f"{name} is not supported")
    unknown = [
        f"{key}={value!r}" for key, value in arguments.items() if not _ARGUMENTS.fullmatch(key)
    ]
    if unknown:
        raise ValueError(f"these `model_args` are not supported: {', '.join(unknown)}")
    for key, known in (("act_layer", activations), ("norm_layer", ("layernorm",))):
        if arguments.get(key) not in (None, *known):
            raise ValueError(f"`{key}` must be {' or '.join(known)}, not {arguments[key]!r}")


def _read_preprocessing(pretrained):
    """Converts the fields of a `pretrained_cfg` to fields of a `Preprocessing`."""
    interpolation = pretrained.get("interpolation") or "bicubic"
    crop_mode = pretrained.get("crop_mode") or "center"
    supported = "bilinear" if interpolation == "bilinear" else "bicubic"
    if interpolation != supported:
        warnings.warn(
            f"Ignored interpolation={interpolation!r} in config.json. Images are resized with "
            f"{supported} interpolation.",
            stacklevel=3,
        )
    if crop_mode not in ("center", "squash"):
        warnings.warn(
            f"Ignored crop_mode={crop_mode!r} in config.json. The centers of images are cropped.",
            stacklevel=3,
        )
    return {
        "mean": [255 * x for x in pretrained["mean"]],
        "std": [255 * x for x in pretrained["std"]],
        "resize": "stretch" if crop_mode == "squash" else "shorter_side",
        "crop_fraction": pretrained.get("crop_pct") or 0.875,
        "interpolation": supported,
    }


def write_config(arguments, architecture=""):
    """Returns the `Folder` for timm's `VisionTransformer`, or for a subclass that `architecture`
    names; see `Dialect.write_config`."""
    activation = gelu_of(arguments)
    has_known_bias = arguments["attention_bias"] in ("qkvo", "o")
    if arguments["position_embedding"] != "learned" or not has_known_bias:
        return None
    if arguments["rotary"] or arguments["representation_size"]:
        return None
    # In timm, the architecture determines what `model_args` cannot: the epsilon (1e-5 in CLIP) and
    # a packed SwiGLU (DINOv2 giant).
    if architecture and (arguments["epsilon"] == 1e-5 or activation == "swiglu"):
        return None
    if arguments["epsilon"] == 1e-5:
        prefix = "quickgelu_" if activation == "quick_gelu" else ""
        architecture = f"vit_base_patch16_clip_{prefix}224"
    if activation == "swiglu":
        architecture = "vit_giant_patch14_dinov2"
    architecture = architecture or "vit_base_patch16_224"
    config = shared_config(arguments, architecture, packed=activation == "swiglu")
    config["model_args"] |= {
        "qkv_bias": arguments["attention_bias"] == "qkvo",
        "init_values": arguments["layer_scale"],
        "fc_norm": arguments["pool_norm"],
        "reg_tokens": arguments["num_registers"],
        "class_token": arguments["classifier"].startswith("token"),
        "pre_norm": arguments["pre_norm"],
    }
    if activation != "swiglu":
        config["model_args"]["act_layer"] = activation
    return with_class_row(config, arguments)


def with_class_row(config, arguments, omit=()):
    """Returns the `Folder` of a model with learned positions, and completes its config."""
    has_position = arguments["classifier"].startswith("token") and arguments["class_token_position"]
    # With `no_embed_class=False`, timm would add position embeddings to the registers too. Instead,
    # add the position embedding of the class token to the class token itself.
    into_token = has_position and arguments["num_registers"] > 0
    config["model_args"]["no_embed_class"] = into_token or not has_position
    return Folder(config, omit=omit, class_row="into token" if into_token else "")


def shared_config(arguments, architecture, packed=False):
    """Returns the part of config.json that all timm models share.

    `packed` means that the first dense layer contains both the gate and the values of a SwiGLU.
    """
    pools = {"token": "token", "gap": "avg", "token_gap": "avg", "map": "map"}
    classes = arguments["classes"] if arguments["include_top"] else 0
    preprocessing = arguments["preprocessing"]
    height, width, channels = arguments["input_shape"]
    white = 2**preprocessing.bit_depth - 1
    hidden_units = arguments["mlp_dim"] * (2 if packed else 1)
    return {
        "architecture": architecture,
        "num_classes": classes,
        "model_args": {
            "img_size": [height, width],
            "in_chans": channels,
            "patch_size": arguments["patch_size"],
            "num_classes": classes,
            "global_pool": pools.get(arguments["classifier"], ""),
            "embed_dim": arguments["hidden_size"],
            "depth": arguments["num_layers"],
            "num_heads": arguments["num_heads"],
            "qk_norm": arguments["qk_norm"],
            # timm multiplies this by the hidden size and rounds down.
            "mlp_ratio": (hidden_units + 0.5) / arguments["hidden_size"],
        },
        "pretrained_cfg": {
            "num_classes": classes,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "input_size": [channels, height, width],
            "mean": [x / white for x in preprocessing.mean],
            "std": [x / white for x in preprocessing.std],
            "crop_pct": preprocessing.crop_fraction,
            "crop_mode": "squash" if preprocessing.resize == "stretch" else "center",
            "interpolation": preprocessing.interpolation or "bilinear",
        },
    }


QKV = Packed(f"{ATTENTION}query", f"{ATTENTION}key", f"{ATTENTION}value")
LAYER_SCALES = (
    ("blocks.{i}.ls1.gamma", f"{BLOCK}LayerScale_0/scale"),
    ("blocks.{i}.ls2.gamma", f"{BLOCK}LayerScale_1/scale"),
)
TIMM = Dialect(
    "timm",
    "patch_embed.proj.weight",
    (
        ("cls_token", names.CLASS_TOKEN),
        ("reg_token", "register_tokens"),
        ("pos_embed", names.POSITIONS),
        ("patch_embed.proj", "embedding"),
        ("blocks.{i}.norm1", f"{BLOCK}LayerNorm_0"),
        ("blocks.{i}.norm2", f"{BLOCK}LayerNorm_1"),
        ("blocks.{i}.attn.qkv", QKV),
        ("blocks.{i}.attn.proj", f"{ATTENTION}out"),
        ("blocks.{i}.mlp.fc1", f"{MLP}Dense_0"),
        ("blocks.{i}.mlp.fc2", f"{MLP}Dense_1"),
        ("blocks.{i}.attn.q_norm", f"{ATTENTION}query_norm"),
        ("blocks.{i}.attn.k_norm", f"{ATTENTION}key_norm"),
        ("norm", "Transformer/encoder_norm"),
        ("fc_norm", "fc_norm"),
        ("pre_logits.fc", "pre_logits"),
        ("head", "head"),
    ),
    layout="pytorch",
    facts=Facts(exact_gelu=True, epsilon=1e-6, position_resampling="bicubic_antialias"),
    read_config=read_config,
    write_config=write_config,
)
