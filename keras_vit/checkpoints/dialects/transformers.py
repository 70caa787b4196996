"""The dialect of transformers for Vision Transformers, and its image processors.

Other families share parts of the dialect.
"""

import warnings

from keras_vit.checkpoints import names
from keras_vit.checkpoints.dialects.dialect import (
    IGNORED,
    Alias,
    Dialect,
    Folder,
    NotSupportedError,
    gelu_of,
)
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.names import ATTENTION, BLOCK, MLP

# Fields of a preprocessor_config.json that only keras_vit writes and reads.
_OWN_FIELDS = ("crop_fraction", "interpolation", "rounding", "exif", "bit_depth", "library")


def read_config(config):
    """Returns the facts in a config.json; see `Dialect.read_config`."""
    gelus = {"gelu": True, "gelu_new": False, "gelu_pytorch_tanh": False}
    activation = config.get("hidden_act", "gelu")
    if activation not in gelus:
        raise ValueError(f"`hidden_act` must be one of {', '.join(gelus)}, not {activation!r}")
    if config.get("pooler_act", "tanh") != "tanh":
        raise ValueError(f"`pooler_act` must be tanh, not {config['pooler_act']!r}")
    return Facts(
        exact_gelu=gelus[activation],
        epsilon=config.get("layer_norm_eps"),
        num_heads=config.get("num_attention_heads"),
        image_size=config.get("image_size"),
    )


def tower_config(config, tower):
    """Returns the fields of a config.json that describe its "vision" or "text" tower.

    A config.json of one tower alone has these fields itself.
    """
    # Old files of CLIP have a second dict, which transformers uses instead of the first.
    fields = config.get(f"{tower}_config_dict") or config.get(f"{tower}_config", config)
    if not isinstance(fields, dict):
        raise ValueError(f"`{tower}_config` must be a JSON object, not {fields!r}")
    return fields


def shared_config(arguments, model_type, architecture, square=False, **fields):
    """Returns the part of config.json that all models share, with extra `fields`.

    Raises a `NotSupportedError` for models that transformers does not support.
    """
    bias = arguments["attention_bias"]
    height, width, channels = arguments["input_shape"]
    # `fields` describe a SwiGLU.
    is_swiglu = arguments["mlp"] == "swiglu"
    gelu = gelu_of({**arguments, "mlp": None} if is_swiglu else arguments)
    positions = "none" if arguments["rotary"] else "learned"
    if arguments["position_embedding"] != positions:
        raise NotSupportedError(
            f"{architecture} in transformers requires position_embedding={positions!r}"
        )
    if square and height != width:
        raise NotSupportedError(
            f'{architecture} in transformers supports only square images; format="timm" may work'
        )
    if "qkv_bias" in fields and bias in ("qkvo", "o"):
        fields["qkv_bias"] = bias == "qkvo"
    elif bias != "qkvo" and "key_bias" not in fields:
        raise NotSupportedError(
            f"{architecture} in transformers has attention biases that the model lacks"
        )
    if arguments["include_top"]:
        fields["id2label"] = {i: f"LABEL_{i}" for i in range(arguments["classes"])}
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
        **fields,
    }


def write_config(arguments):
    """Returns the `Folder` for `ViTModel` or `ViTForImageClassification`; see
    `Dialect.write_config`."""
    has_gelu = arguments["mlp"] in (None, "gelu", "gelu_tanh")
    if arguments["classifier"] != "token" or arguments["rotary"] or not has_gelu:
        return None
    if arguments["include_top"] and arguments["representation_size"]:
        return None
    name = "ViTForImageClassification" if arguments["include_top"] else "ViTModel"
    class_row = "" if arguments["class_token_position"] else "zeros"
    units = arguments["representation_size"] or None  # None for `hidden_size`
    config = shared_config(arguments, "vit", name, qkv_bias=True, pooler_output_size=units)
    return Folder(config, tower="vit." if arguments["include_top"] else "", class_row=class_row)


def projections(prefix):
    """Returns the pairs of `q_proj`, `k_proj` and `v_proj`; `prefix` contains the field `{i}`."""
    return [(f"{prefix}{name[0]}_proj", ATTENTION + name) for name in ("query", "key", "value")]


def clip_layers(prefix):
    """Returns the pairs of a block of CLIP's and SigLIP's towers; `prefix` contains `{i}`."""
    return (
        (f"{prefix}layer_norm1", f"{BLOCK}LayerNorm_0"),
        (f"{prefix}layer_norm2", f"{BLOCK}LayerNorm_1"),
        *projections(f"{prefix}self_attn."),
        (f"{prefix}self_attn.out_proj", f"{ATTENTION}out"),
        (f"{prefix}mlp.fc1", f"{MLP}Dense_0"),
        (f"{prefix}mlp.fc2", f"{MLP}Dense_1"),
    )


# `ViTModel` and `ViTForImageClassification`. In published files, names are like
# `encoder.layer.N.attention.attention.query`; in memory, transformers 5 uses
# `layers.N.attention.q_proj`.
LAYER = "{tower}{layer}.{i}."
EMBEDDINGS = (
    ("{tower}embeddings.mask_token", IGNORED),
    ("{tower}embeddings.cls_token", names.CLASS_TOKEN),
    ("{tower}embeddings.position_embeddings", names.POSITIONS),
    ("{tower}embeddings.patch_embeddings.projection", "embedding"),
)
ATTENTIONS = (
    (f"{LAYER}attention.attention.query", f"{ATTENTION}query"),
    (f"{LAYER}attention.attention.key", f"{ATTENTION}key"),
    (f"{LAYER}attention.attention.value", f"{ATTENTION}value"),
    (f"{LAYER}attention.output.dense", f"{ATTENTION}out"),
    *((name, Alias(target)) for name, target in projections(f"{LAYER}attention.")),
    (f"{LAYER}attention.o_proj", Alias(f"{ATTENTION}out")),
)
OUTPUTS = (
    ("{tower}layernorm", "Transformer/encoder_norm"),
    ("{tower}pooler.dense", "pre_logits"),
    ("classifier", "head"),
)
HUGGING_FACE = Dialect(
    "huggingface",
    "{tower}embeddings.patch_embeddings.projection.weight",
    (
        *EMBEDDINGS,
        (f"{LAYER}layernorm_before", f"{BLOCK}LayerNorm_0"),
        (f"{LAYER}layernorm_after", f"{BLOCK}LayerNorm_1"),
        *ATTENTIONS,
        (f"{LAYER}intermediate.dense", f"{MLP}Dense_0"),
        (f"{LAYER}mlp.fc1", Alias(f"{MLP}Dense_0")),
        (f"{LAYER}output.dense", f"{MLP}Dense_1"),
        (f"{LAYER}mlp.fc2", Alias(f"{MLP}Dense_1")),
        *OUTPUTS,
    ),
    layout="pytorch",
    choices={
        "tower": ("", "vit.", "ijepa.", "dinov2.", "dinov2_with_registers."),
        "layer": ("encoder.layer", "layers"),
    },
    facts=Facts(
        exact_gelu=True,
        epsilon=1e-12,
        position_resampling="bicubic",
        class_row=True,
        head_pool="token",
    ),
    read_config=read_config,
    write_config=write_config,
)

# The JSON file of an image processor.


def read_preprocessor(config, defaults, file_name):
    """Converts the JSON object of an image processor to fields of a `Preprocessing`.

    Warns about settings that a `Preprocessing` cannot describe.
    """
    size = _size_of(config)
    resized = size.get("shortest_edge") or size.get("height")
    crop = config.get("crop_size")
    crops = config.get("do_center_crop", crop is not None)
    resize = defaults["resize"]
    crop_fraction = defaults["crop_fraction"]
    if resized:
        cropped = (crop.get("height") if isinstance(crop, dict) else crop) or resized
        resize = "shorter_side" if "shortest_edge" in size else "stretch"
        crop_fraction = min(cropped / resized, 1.0) if crops else 1.0
    # Pillow's codes: 2 is bilinear, and 3 is bicubic.
    resample = config.get("resample", 3 if defaults["interpolation"] == "bicubic" else 2)
    is_ignored = {
        "do_center_crop": resized and resize == "shorter_side" and not crops,
        "size": config.get("size") is not None and not resized,
        "do_resize": not config.get("do_resize", True),
        "resample": resample not in (2, 3),
        "keep_aspect_ratio": config.get("keep_aspect_ratio"),
    }
    ignored = [f"{name}={config.get(name)!r}" for name, value in is_ignored.items() if value]
    if ignored:
        warnings.warn(
            f"Ignored {', '.join(ignored)} in {file_name}. Images are resized with bilinear or "
            "bicubic interpolation, then cropped to the model's image size.",
            stacklevel=2,
        )
    mean, std = _mean_and_std_of(config)
    return {
        "mean": defaults["mean"] if mean is None else mean,
        "std": defaults["std"] if std is None else std,
        "resize": resize,
        "crop_fraction": crop_fraction,
        "interpolation": "bicubic" if resample in (1, 3) else "bilinear",
        **{name: config[name] for name in _OWN_FIELDS if name in config},
    }


def _size_of(config):
    """Returns the `size` of an image processor as a dict; {} if it has another form."""
    size = config.get("size")
    if isinstance(size, int):
        kind = config.get("image_processor_type") or config.get("feature_extractor_type") or ""
        # The processors of ViT and DeiT stretch an image, then crop it.
        stretches = "crop_size" not in config or kind.startswith(("DeiT", "ViT"))
        return {"height" if stretches else "shortest_edge": size}
    return size if isinstance(size, dict) else {}


def _mean_and_std_of(config):
    """Returns the mean and std of an image processor, as lists in the scale of pixel values.

    A missing mean or std is None.
    """
    if not config.get("do_normalize", True):
        mean_and_std = (0, 1)
    else:
        mean_and_std = (config.get("image_mean"), config.get("image_std"))
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1
    white = 255 if abs(255 * factor - 1) < 1e-6 else 1 / factor
    if config.get("bit_depth") == 16:
        white *= 257  # 65,535 for 255
    scaled = []
    for value in mean_and_std:
        channels = [value] * 3 if isinstance(value, int | float) else value
        scaled.append(None if channels is None else [white * x for x in channels])
    return scaled


def write_preprocessor(model):
    """Returns the preprocessor_config.json for transformers, including `_OWN_FIELDS`."""
    preprocessing = model.preprocessing
    height, width, _ = model.image_shape
    resized_height, resized_width = preprocessing.resized((height, width))
    white = 2**preprocessing.bit_depth - 1
    is_stretched = preprocessing.resize == "stretch"
    size = {"shortest_edge": min(resized_height, resized_width)}
    if is_stretched:
        size = {"height": resized_height, "width": resized_width}
    return {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": size,
        "resample": 3 if preprocessing.interpolation == "bicubic" else 2,
        "do_center_crop": not is_stretched or size != {"height": height, "width": width},
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [x / white for x in preprocessing.mean],
        "image_std": [x / white for x in preprocessing.std],
        **{name: getattr(preprocessing, name) for name in _OWN_FIELDS},
    }
