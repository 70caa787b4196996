"""Vision Transformers of the paper and AugReg, and the weight formats that most families share."""

import re
import warnings

from keras_vit.checkpoints import names, position_embeddings
from keras_vit.checkpoints.registry import Format, PublishedWeights
from keras_vit.families.registry import Sizes, sizes

TI = {"hidden_size": 192, "num_layers": 12, "mlp_dim": 768, "num_heads": 3}
S = {"hidden_size": 384, "num_layers": 12, "mlp_dim": 1536, "num_heads": 6}
B = {"hidden_size": 768, "num_layers": 12, "mlp_dim": 3072, "num_heads": 12}
L = {"hidden_size": 1024, "num_layers": 24, "mlp_dim": 4096, "num_heads": 16}
H = {"hidden_size": 1280, "num_layers": 32, "mlp_dim": 5120, "num_heads": 16}

# The number after the slash is the patch size in pixels.
_size = Sizes()
ViT_Ti16 = _size("ViT-Ti/16", "5.7M parameters (AugReg)", patch_size=16, **TI)
ViT_S16 = _size("ViT-S/16", "22.1M parameters (AugReg)", patch_size=16, **S)
ViT_S32 = _size("ViT-S/32", "22.9M parameters (AugReg)", patch_size=32, **S)
ViT_B8 = _size("ViT-B/8", "86.6M parameters (AugReg)", patch_size=8, **B)
ViT_B16 = _size("ViT-B/16", "86.6M parameters (paper Table 1)", patch_size=16, **B)
ViT_B32 = _size("ViT-B/32", "88.2M parameters (paper Table 1)", patch_size=32, **B)
ViT_L16 = _size("ViT-L/16", "304.3M parameters (paper Table 1)", patch_size=16, **L)
ViT_L32 = _size("ViT-L/32", "306.5M parameters (paper Table 1)", patch_size=32, **L)
ViT_H14 = _size("ViT-H/14", "632.0M parameters (paper Table 1)", patch_size=14, **H)

# Preprocessing with ImageNet's mean and standard deviation.
IMAGENET = {
    "mean": [255 * x for x in (0.485, 0.456, 0.406)],
    "std": [255 * x for x in (0.229, 0.224, 0.225)],
    "resize": "shorter_side",
    "crop_fraction": 0.875,
    "interpolation": "bicubic",
}
TIMM_IMAGENET = {**IMAGENET, "crop_fraction": 0.9}  # most files of timm at 224 pixels
IDENTITY = ("patch_size", "num_layers", "hidden_size", "resnet_blocks")

# Weight formats ------------------------------------------------------------------------------------------------------

# The format of `vit_jax`, big_vision and keras_vit, including the ResNets of big_vision and keras_vit. Old and new
# `vit_jax` files number some modules differently.
_BLOCK = r"(Transformer/encoderblock_\d+)"
VIT_JAX = Format(
    "vit_jax",
    rf"{names.EMBEDDING}|{names.STEM_ROOT}|{names.BIT_ROOT}",
    (
        (rf"{_BLOCK}/MultiHeadDotProductAttention_1/(.*)", r"\1/MultiHeadDotProductAttention_0/\2"),
        (rf"{_BLOCK}/LayerNorm_2/(.*)", r"\1/LayerNorm_1/\2"),
        (rf"{_BLOCK}/MlpBlock_3/(.*)", r"\1/MlpBlock_0/\2"),
        # In big_vision, the pooling and sometimes the position embeddings are at the top level, and the weights of
        # all blocks may be stacked.
        (r"(?:Transformer/)?pos_embedding", names.POSITIONS),
        (r"((?:MlpBlock_0|MultiHeadDotProductAttention_0|LayerNorm_0)/.*|probe)", r"MAPHead_0/\1"),
        (r"Transformer/encoderblock/(.*)", r"Transformer/encoderblock_*/\1"),
    ),
    prefixes=("", "opt/target/", "params/", "params/img/", "img/", "opt/target/img/"),
)


# Names of the supported `model_args` of timm. The arrays determine some of them, the families read others from the
# config, and the rest do not affect the output.
_TIMM_ARGUMENTS = re.compile(
    r"(img|patch)_size|in_chans|num_(classes|heads|reg_tokens)|global_pool|embed_dim|depth|mlp_ratio|act_layer|"
    r"(qkv|proj)_bias|qkv_fused|qk_norm|scale_(attn|mlp)(_norm|_inner)?|init_values|(reg|class)_tokens?|"
    r"no_embed_class|(pre|final|fc|use_fc)_norm|norm_layer|swiglu_(mlp|align_to)|pool_include_prefix|ref_feat_shape|"
    r"(dynamic|strict)_img_(size|pad)|rope_temperature|\w*drop_(path_)?rate|weight_init|fix_init|head_init_scale"
)
# Names of unsupported timm models. Their arrays do not reveal, for example, post-norms or rotary embeddings.
_TIMM_OTHERS = r".*_rpn_|.*_rope_|vit_pe_|.*_sapiens2|eva_giant_|eva02_enormous_"
# Names of timm models that use the tanh approximation of the GELU.
_TIMM_TANH = r"vit_(so400m_patch16_siglip|giantopt|base_patch32_siglip|large_patch16_siglip_(gap_)?512)"
# Numbers of heads, by the start of timm's name, that differ from those of the size with equal dimensions, or that have
# no such size.
_TIMM_HEADS = {"vit_base_patch16_gap_": 16, "vit_giant_patch16_radio": 24, "vit_so400m_patch14_reg1": 16}


def read_timm_config(config, activations=("gelu", "gelu_tanh", "quick_gelu")):
    """Returns the facts in timm's config.json; see `Format.read_config`."""
    arguments, pool, name = config.get("model_args") or {}, config.get("global_pool"), config.get("architecture", "")
    config, pool = config.get("pretrained_cfg") or {}, arguments.get("global_pool", pool)
    if pool not in (None, "", "token", "avg", "map") or arguments.get("pool_include_prefix"):
        raise ValueError(
            "`global_pool` must be token, avg, map or empty, and `pool_include_prefix` must not be set; `global_pool` "
            f"is {pool!r}"
        )
    if re.match(_TIMM_OTHERS, name):
        raise ValueError(f"{name} is not supported")
    if unknown := [f"{key}={value!r}" for key, value in arguments.items() if not _TIMM_ARGUMENTS.fullmatch(key)]:
        raise ValueError(f"these `model_args` are not supported: {', '.join(unknown)}")
    activation, norm = arguments.get("act_layer"), arguments.get("norm_layer")
    for key, value, known in (("act_layer", activation, activations), ("norm_layer", norm, ("layernorm",))):
        if value not in (None, *known):
            raise ValueError(f"`{key}` must be {' or '.join(known)}, not {value!r}")
    # Collect the facts that the arrays do not determine. The model name implies some defaults.
    facts = {
        "num_heads": arguments.get("num_heads")
        or next((n for k, n in _TIMM_HEADS.items() if name.startswith(k)), None),
        "image_size": arguments.get("img_size") or (config.get("input_size") or [])[1:],
        "pool": pool,
    }
    if norm or (name and not re.search("_clip_|_dinov3|_lingbot", name)):
        facts["epsilon"] = 1e-5 if name.startswith("beit3_") and not norm else 1e-6
    if name or activation:
        facts["exact_gelu"] = activation == "gelu" if activation else not re.match(_TIMM_TANH, name)
    if activation == "quick_gelu":
        facts |= {"exact_gelu": None, "mlp": activation}
    if "mean" not in config or "std" not in config:
        return facts
    interpolation, crop_mode = config.get("interpolation") or "bicubic", config.get("crop_mode") or "center"
    if interpolation not in ("bilinear", "bicubic") or crop_mode not in ("center", "squash"):
        warnings.warn(
            f"Ignored interpolation={interpolation!r} or crop_mode={crop_mode!r} in config.json. Images are resized "
            "with bilinear or, here, bicubic interpolation, and their centers are cropped.",
            stacklevel=2,
        )
    preprocessing = {
        "mean": [255 * x for x in config["mean"]],
        "std": [255 * x for x in config["std"]],
        "resize": "stretch" if crop_mode == "squash" else "shorter_side",
        "crop_fraction": config.get("crop_pct") or 0.875,
        "interpolation": "bilinear" if interpolation == "bilinear" else "bicubic",
    }
    return {**facts, "preprocessing": preprocessing}


def write_timm_config(arguments, architecture="vit_base_patch16_224"):
    """Returns `(config, options)` for timm's `VisionTransformer`; see `Format.write_config`."""
    gelu = gelu_of(arguments)
    has_token = arguments["classifier"].startswith("token")
    has_row = has_token and arguments["class_token_position"]
    # With `no_embed_class=False`, timm would add position embeddings to the registers too. Instead, add the position
    # embedding of the class token to the class token itself.
    into_token = has_row and arguments["num_registers"] > 0
    is_plain = arguments["position_embedding"] == "learned" and arguments["attention_bias"] in ("qkvo", "o")
    if not is_plain or arguments["rotary"] or arguments["representation_size"]:
        return None, {}
    if arguments["epsilon"] == 1e-5:
        architecture = f"vit_base_patch16_clip_{'quickgelu_' if gelu == 'quick_gelu' else ''}224"
    if gelu == "swiglu":
        architecture = "vit_giant_patch14_dinov2"
    config = timm_config(arguments, architecture, packed=gelu == "swiglu")
    config["model_args"] |= {
        "qkv_bias": arguments["attention_bias"] == "qkvo",
        "init_values": arguments["layer_scale"],
        "fc_norm": arguments["pool_norm"],
        "reg_tokens": arguments["num_registers"],
        "class_token": has_token,
        "pre_norm": arguments["pre_norm"],
        "no_embed_class": into_token or not has_row,
    }
    if gelu != "swiglu":
        config["model_args"]["act_layer"] = gelu
    return config, {"add_row": "into token" if into_token else "", "skip": r".*mlp\.(w12|w3)"}


def gelu_of(arguments):
    """Returns the argument `mlp`, or the GELU that `exact_gelu` selects if `mlp` is None."""
    return arguments["mlp"] or ("gelu" if arguments["exact_gelu"] else "gelu_tanh")


def timm_config(arguments, architecture, packed=False):
    """Returns the part of config.json that all timm models share; `packed` means that SwiGLU's kernels are joined."""
    pools = {"token": "token", "gap": "avg", "token_gap": "avg", "map": "map"}
    classes = arguments["classes"] if arguments["include_top"] else 0
    preprocessing, (height, width, channels) = arguments["preprocessing"], arguments["input_shape"]
    white = 2**preprocessing.bit_depth - 1
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
            "mlp_ratio": (arguments["mlp_dim"] * (2 if packed else 1) + 0.5) / arguments["hidden_size"],
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


TIMM = Format(
    "timm",
    r"patch_embed\.proj\.weight",
    (
        (r"cls_token", "class_token/cls"),
        (r"reg_token", "register_tokens/register_tokens"),
        (r"pos_embed", "position_embedding/pos_embedding"),
        (r"patch_embed\.proj", "embedding"),
        (r"blocks\.(\d+)\.norm([12])", r"encoderblock_\1/norm_\2"),
        (r"blocks\.(\d+)\.attn\.qkv", r"encoderblock_\1/attention/query|key|value"),
        (r"blocks\.(\d+)\.attn\.proj", r"encoderblock_\1/attention/out"),
        (r"blocks\.(\d+)\.mlp\.fc([12])", r"encoderblock_\1/mlp_\2"),
        (r"blocks\.(\d+)\.attn\.q_norm", r"encoderblock_\1/attention/query_norm"),
        (r"blocks\.(\d+)\.attn\.k_norm", r"encoderblock_\1/attention/key_norm"),
        (r"norm", "encoder_norm"),
        (r"fc_norm", "pool_norm"),
        (r"pre_logits\.fc", "pre_logits"),
        (r"head", "head"),
    ),
    layout="pytorch",
    facts={"exact_gelu": True, "epsilon": 1e-6, "position_resampling": "bicubic_antialias"},
    read_config=read_timm_config,
    write_config=write_timm_config,
)


def read_huggingface_config(config):
    """Returns the facts in a Hugging Face config.json. Raises a `ValueError` if the activation is not supported."""
    gelus = {"gelu": True, "gelu_new": False, "gelu_pytorch_tanh": False}
    activation = config.get("hidden_act", "gelu")
    if activation not in gelus:
        raise ValueError(f"`hidden_act` must be one of {', '.join(gelus)}, not {activation!r}")
    if config.get("pooler_act", "tanh") != "tanh":
        raise ValueError(f"`pooler_act` must be tanh, not {config['pooler_act']!r}")
    return {
        "exact_gelu": gelus[activation],
        "epsilon": config.get("layer_norm_eps"),
        "num_heads": config.get("num_attention_heads"),
        "image_size": config.get("image_size"),
    }


def huggingface_config(arguments, model_type, architecture, square=False, **fields):
    """Returns transformers' config.json with extra `fields`, or a string with the reason why this is impossible."""
    bias, (height, width, channels) = arguments["attention_bias"], arguments["input_shape"]
    gelu = gelu_of({**arguments, "mlp": None} if arguments["mlp"] == "swiglu" else arguments)
    positions = "none" if arguments["rotary"] else "learned"
    if arguments["position_embedding"] != positions:
        return f"{architecture} in transformers requires position_embedding={positions!r}"
    if square and height != width:
        return f'{architecture} in transformers supports only square images; format="timm" may work'
    if "qkv_bias" in fields and bias in ("qkvo", "o"):
        fields["qkv_bias"] = bias == "qkvo"
    elif bias != "qkvo" and "key_bias" not in fields:
        return f"{architecture} in transformers has attention biases that the model lacks"
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": "float32",
        "hidden_act": gelu.replace("gelu_tanh", "gelu_pytorch_tanh"),
        "hidden_size": arguments["hidden_size"],
        "intermediate_size": arguments["mlp_dim"],
        "num_hidden_layers": arguments["num_layers"],
        "num_attention_heads": arguments["num_heads"],
        "image_size": height if height == width else [height, width],
        "patch_size": arguments["patch_size"],
        "num_channels": channels,
        "layer_norm_eps": arguments["epsilon"],
        **({"id2label": {i: f"LABEL_{i}" for i in range(arguments["classes"])}} if arguments["include_top"] else {}),
        **fields,
    }


def write_huggingface_config(arguments):
    """Returns `(config, options)` for `ViTModel` or `ViTForImageClassification`; see `Format.write_config`."""
    if arguments["classifier"] != "token" or arguments["rotary"] or arguments["mlp"] not in (None, "gelu", "gelu_tanh"):
        return None, {}
    if arguments["include_top"] and arguments["representation_size"]:
        return None, {}
    name = "ViTForImageClassification" if arguments["include_top"] else "ViTModel"
    add_row = "" if arguments["class_token_position"] else "zeros"
    options = {"prefix": "vit." if arguments["include_top"] else "", "add_row": add_row}
    return huggingface_config(arguments, "vit", name, qkv_bias=True), options


def projections(prefix):
    """Returns renames for `q_proj`, `k_proj` and `v_proj`; the regex `prefix` must capture the block number."""
    names = ("query", "key", "value")
    return [(rf"{prefix}{name[0]}_proj", rf"encoderblock_\1/attention/{name}") for name in names]


# Weight names of `ViTModel` and `ViTForImageClassification` in transformers. Published files use names like
# `encoder.layer.N.attention.attention.query`; transformers 5 uses `layers.N.attention.q_proj` in memory.
VIT = r"(?:(?:vit|ijepa|dinov2|dinov2_with_registers)\.)?"
LAYER = VIT + r"(?:encoder\.layer|layers)\.(\d+)\."
HUGGING_FACE = Format(
    "huggingface",
    VIT + r"embeddings\.patch_embeddings\.projection\.weight",
    (
        (VIT + r"embeddings\.mask_token", ""),
        (VIT + r"embeddings\.cls_token", "class_token/cls"),
        (VIT + r"embeddings\.position_embeddings", "position_embedding/pos_embedding"),
        (VIT + r"embeddings\.patch_embeddings\.projection", "embedding"),
        (LAYER + r"layernorm_before", r"encoderblock_\1/norm_1"),
        (LAYER + r"layernorm_after", r"encoderblock_\1/norm_2"),
        (LAYER + r"attention\.attention\.(query|key|value)", r"encoderblock_\1/attention/\2"),
        *projections(LAYER + r"attention\."),
        (LAYER + r"attention\.(?:output\.dense|o_proj)", r"encoderblock_\1/attention/out"),
        (LAYER + r"(?:intermediate\.dense|mlp\.fc1)", r"encoderblock_\1/mlp_1"),
        (LAYER + r"(?:output\.dense|mlp\.fc2)", r"encoderblock_\1/mlp_2"),
        (VIT + r"layernorm", "encoder_norm"),
        (VIT + r"pooler\.dense", "pre_logits"),
        (r"classifier", "head"),
    ),
    layout="pytorch",
    facts={"exact_gelu": True, "epsilon": 1e-12, "position_resampling": "bicubic", "class_row": True},
    read_config=read_huggingface_config,
    write_config=write_huggingface_config,
)

# Published files -----------------------------------------------------------------------------------------------------

_BUCKET = "https://storage.googleapis.com/vit_models"


def rows(table, collection, classes, resolution, models, ending=""):
    """Yields the `PublishedWeights` of `models` in a collection. Files of "imagenet21k" contain `pre_logits`."""
    for model in models:
        name = model.replace("/", "_") + ending
        url = f"{_BUCKET}/{collection}/{name.replace('+', '%2B')}.npz"
        units = table[model]["hidden_size"] if collection == "imagenet21k" else 0
        yield PublishedWeights(collection, name, model, url, classes, resolution, units)


def timm_row(collection, name, model, classes, side, preprocessing=TIMM_IMAGENET, arguments=None):
    """Returns the `PublishedWeights` of a file that timm publishes on the Hugging Face Hub."""
    url = f"https://huggingface.co/timm/{name}"
    preprocessing = {**preprocessing, "library": "torchvision"}
    return PublishedWeights(collection, name, model, url, classes, side, 0, preprocessing, arguments or {})


def big_vision_row(collection, path, model, classes, side, **fields):
    """Returns the `PublishedWeights` of a file in big_vision's bucket; `path` omits the extension."""
    url = f"https://storage.googleapis.com/big_vision/{path}.npz"
    return PublishedWeights(collection, path.rpartition("/")[2], model, url, classes, side, **fields)


def augreg(models, model, aug, wd, do=0.0, sd=0.0):
    """Returns the `PublishedWeights` of an AugReg file trained on ImageNet-21k.

    The augmentation levels "light0" and "light1" in AugReg's file names are "light1" and "light2" in the paper.
    """
    return parse_augreg(f"{_augreg_model(model)}-i21k-300ep-lr_0.001-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}", models)


def _augreg_model(model):
    """Returns the name of a size as AugReg's file names spell it, such as "B_16" or "R26_S_32"."""
    return model.replace("/", "_").replace("ViT-", "").replace("+", "_")


_AUGREG_NAME = re.compile(
    r"(?P<model>\w+)-(?P<ds>i1k|i21k(_30)?)-\d+ep-lr_[\d.]+-aug_\w+-wd_[\d.]+-do_[\d.]+-sd_[\d.]+"
    r"(--(?P<adapt_ds>\w+)-steps_\d+k-lr_[\d.]+-res_(?P<res>\d+))?"
)
_DOWNSTREAM_CLASSES = {
    "imagenet2012": 1000,
    "cifar10": 10,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "oxford_flowers102": 102,
    "resisc45": 45,
}


def parse_augreg(name, models=None):
    """Returns the `PublishedWeights` for a file name in AugReg's naming scheme, or None for other names."""
    match = _AUGREG_NAME.fullmatch(name)
    model = match and next((m for m in models or sizes() if _augreg_model(m) == match["model"]), None)
    if not model:
        return None
    classes = {"i1k": 1000}.get(match["ds"], 21843)
    if match["adapt_ds"]:
        classes = _DOWNSTREAM_CLASSES.get(match["adapt_ds"])
    return PublishedWeights("augreg", name, model, f"{_BUCKET}/augreg/{name}.npz", classes, int(match["res"] or 224))


AUGREG_RULE = (
    "{model}-{ds}-{epochs}ep-lr_{lr}-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}, followed in fine-tuned files by "
    "--{adapt_ds}-steps_{k}k-lr_{lr}-res_{pixels}",
    parse_augreg,
)
_B_AND_L = ("ViT-B/16", "ViT-B/32", "ViT-B/8", "ViT-L/16", "ViT-L/32")
PUBLISHED = (
    # The heads of ViT-L_32 and ViT-H_14 are reported to be all zeros.
    *rows(_size.table, "imagenet21k", 21843, 224, (*_B_AND_L, "ViT-H/14")),
    *rows(_size.table, "imagenet21k+imagenet2012", 1000, 384, _B_AND_L),
    *rows(_size.table, "imagenet21k+imagenet2012", 1000, 224, ("ViT-B/16", "ViT-L/16"), "-224"),
    # The ViT-S_16 file also contains the optimizer state.
    *rows(_size.table, "sam", 1000, 224, ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-S/16")),
    # AugReg files pre-trained on ImageNet-21k, one for each of these sizes.
    augreg(_size.table, "ViT-L/16", "strong1", 0.1),
    augreg(_size.table, "ViT-B/16", "medium1", 0.1),
    augreg(_size.table, "ViT-S/16", "light1", 0.03),
    augreg(_size.table, "ViT-Ti/16", "none", 0.03),
    augreg(_size.table, "ViT-B/32", "light1", 0.1),
    augreg(_size.table, "ViT-S/32", "none", 0.1),
    augreg(_size.table, "ViT-B/8", "medium2", 0.1),
)

# Inferring the model arguments of a file -----------------------------------------------------------------------------

_BLOCK_0 = "Transformer/encoderblock_0"
_POSITIONS_X, _POSITIONS_Y = (f"Transformer/posembed_input/{axis}_embedding" for axis in "xy")
_DISTANCES = f"{_BLOCK_0}/MultiHeadDotProductAttention_0/relative_embedding"


def dimension(shapes, name, axis):
    """Returns the length of an axis of an array, or None if the array does not exist."""
    shape = shapes.get(name, ())
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def head_arguments(shapes):
    """Returns the arguments `include_top` and, for weights with a head, `classes`."""
    classes = dimension(shapes, names.HEAD[0], -1)
    return {"include_top": False} if classes is None else {"include_top": True, "classes": classes}


def infer(shapes, facts):
    """Infers the arguments of a Vision Transformer; see `Family.infer`."""
    if names.EMBEDDING not in shapes and not any(name.startswith("Transformer/") for name in shapes):
        return None
    # Count the blocks instead of trusting their numbers, which a damaged or hostile file may choose.
    blocks = {match[1] for name in shapes if (match := re.match(r"Transformer/encoderblock_(\d+)/", name))}
    hidden_size = dimension(shapes, names.EMBEDDING, -1)
    query = f"{_BLOCK_0}/MultiHeadDotProductAttention_0/query/kernel"
    arguments = {
        "patch_size": dimension(shapes, names.EMBEDDING, 0),
        "hidden_size": hidden_size,
        "num_layers": len(blocks) or None,
        "mlp_dim": dimension(shapes, f"{_BLOCK_0}/MlpBlock_0/Dense_0/kernel", 1),
        "num_heads": shapes[query][1] if len(shapes.get(query, ())) == 3 else facts.get("num_heads"),
        "representation_size": dimension(shapes, "pre_logits/bias", 0) or 0,
        "classifier": _classifier(shapes, facts),
        **head_arguments(shapes),
    }
    # Add the differences from the paper's model, then derive the input shape from the position grid.
    _add_parts(arguments, shapes, facts)
    arguments["num_heads"] = arguments["num_heads"] or _published_heads(arguments)
    if facts.get("exact_gelu"):
        arguments["exact_gelu"] = True
    if facts.get("epsilon", 1e-6) != 1e-6:
        arguments["epsilon"] = facts["epsilon"]
    grid = _add_positions(arguments, shapes, facts.get("grid"), facts.get("class_row"))
    stride = arguments["patch_size"]
    if names.STEM_ROOT in shapes:
        arguments["resnet_blocks"] = stages(shapes)
        stride = stride and stride * 2 ** (2 + max(len(arguments["resnet_blocks"]) - 1, 0))
    if grid is not None and stride:
        arguments["input_shape"] = (*(side * stride for side in grid), shapes[names.first_kernel(shapes)][2])
    return arguments


def _classifier(shapes, facts):
    has_token = names.CLASS_TOKEN in shapes
    if "MAPHead_0/probe" in shapes:
        if facts.get("pool") == "map" and (has_token or "register_tokens" in shapes):
            raise ValueError(
                "`global_pool` must not be map in a model with a class token or registers, because timm's pooling "
                "ignores these tokens. Received: global_pool='map'"
            )
        return "map"
    pool = facts.get("pool", facts.get("head_pool") if names.HEAD[0] in shapes else None)
    if pool == "":
        return "token_unpooled" if has_token else "unpooled"
    if pool == "avg" or (pool is None and "fc_norm/scale" in shapes):
        return "token_gap" if has_token else "gap"
    return "token" if has_token else "gap"


def _add_parts(arguments, shapes, facts):
    """Adds the arguments that differ from the paper's model."""
    parts = {
        "num_registers": dimension(shapes, "register_tokens", 1),
        "layer_scale": 1e-5 if f"{_BLOCK_0}/LayerScale_0/scale" in shapes else None,
        "mlp": "swiglu" if f"{_BLOCK_0}/MlpBlock_0/Dense_gate/kernel" in shapes else facts.get("mlp"),
        "mlp_norm": f"{_BLOCK_0}/MlpBlock_0/LayerNorm_0/scale" in shapes,
        "qk_norm": f"{_BLOCK_0}/MultiHeadDotProductAttention_0/query_norm/scale" in shapes,
        "pre_norm": "Transformer/pre_norm/scale" in shapes,
        "attention_norm": f"{_BLOCK_0}/MultiHeadDotProductAttention_0/out_norm/scale" in shapes,
        "pool_norm": "fc_norm/scale" in shapes,
        "distilled": names.DISTILLATION_TOKEN in shapes,
        "rotary": facts.get("rotary"),
        "position_resampling": facts.get("position_resampling"),
    }
    arguments |= {name: value for name, value in parts.items() if value}
    for argument, kernel in (("patch_bias", names.EMBEDDING), ("mlp_bias", f"{_BLOCK_0}/MlpBlock_0/Dense_0/kernel")):
        if kernel in shapes and kernel.replace("kernel", "bias") not in shapes:
            arguments[argument] = False
    projections = [re.search(r"/MultiHeadDotProductAttention_0/([qkvo])\w+/bias$", name) for name in shapes]
    biases = {match[1] for match in projections if match}
    if biases != set("qkvo"):
        arguments["attention_bias"] = "".join(letter for letter in "qkvo" if letter in biases)


def _published_heads(arguments):
    """Returns the number of heads of the published size with equal dimensions, or None."""
    known = ("patch_size", "hidden_size", "num_layers", "mlp_dim")
    for size in sizes().values():
        is_alike = (size.get("mlp") == "swiglu") == (arguments.get("mlp") == "swiglu")
        is_alike &= size.get("classifier") != "map" or not arguments["classifier"].startswith("token")
        if is_alike and "num_heads" in size and all(size.get(name) == arguments[name] for name in known):
            return size["num_heads"]
    return None


def stages(shapes):
    """Returns the number of units in each stage of a ResNet."""
    units: dict[str, set] = {}
    for name in shapes:
        if match := re.match(r"block(\d+)/unit(\d+)/", name):
            units.setdefault(match[1], set()).add(match[2])
    return tuple(len(units[stage]) for stage in sorted(units, key=lambda digits: (len(digits), digits)))


def _add_positions(arguments, shapes, known_grid, class_row):
    """Adds the arguments of the position embedding and returns the patch grid, `(rows, columns)`, or None."""
    has_token = names.CLASS_TOKEN in shapes
    if any(re.match(r"Transformer/encoderblock_\d+/posembed_input/", name) for name in shapes):
        arguments["position_embedding_at"] = "every_layer"
    if _POSITIONS_Y in shapes:
        arguments["position_embedding"] = "learned2d"
        return shapes[_POSITIONS_Y][1], shapes[_POSITIONS_X][1]
    if names.POSITIONS not in shapes and arguments.get("rotary"):
        arguments["position_embedding"] = "none"
        return known_grid or (224 // arguments["patch_size"],) * 2
    if names.POSITIONS not in shapes and _DISTANCES not in shapes:
        arguments |= {"position_embedding": "sincos2d", "class_token_position": not has_token}
        return known_grid
    if names.POSITIONS in shapes:
        arguments["position_embedding"] = "learned"
        rows = dimension(shapes, names.POSITIONS, 1)
    else:
        arguments["position_embedding"] = "relative"
        rows = (shapes[_DISTANCES][0] + 1) // 2
    # The model is not built yet, so its grid is unknown. Pass (0, 0), which matches no file.
    class_tokens = names.count_class_tokens(shapes)
    found = position_embeddings.source_grid(rows or 0, class_tokens, (0, 0), known_grid, class_row)
    grid, token_positions = found or (None, 1)
    arguments["class_token_position"] = bool(token_positions) or not has_token
    return grid


FAMILY = _size.register(
    identity=IDENTITY,
    infer=infer,
    formats=(VIT_JAX, TIMM, HUGGING_FACE),
    published=PUBLISHED,
    rules={"augreg": AUGREG_RULE},
    reference="https://github.com/google-research/vision_transformer",
)
