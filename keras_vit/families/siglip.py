"""SigLIP and SigLIP 2 image towers for fixed image sizes, with attention pooling."""

import dataclasses

from keras_vit.checkpoints.registry import Format
from keras_vit.families import vit
from keras_vit.families.registry import Sizes
from keras_vit.families.vit import B, L

SO400M = {"hidden_size": 1152, "num_layers": 27, "mlp_dim": 4304, "num_heads": 16}
G_OPT = {"hidden_size": 1536, "num_layers": 40, "mlp_dim": 6144, "num_heads": 16}

_size = Sizes()
SigLIP_B32 = _size("SigLIP-B/32", "94.5M parameters without a head", patch_size=32, classifier="map", **B)
SigLIP_B16 = _size("SigLIP-B/16", "92.9M parameters without a head", patch_size=16, classifier="map", **B)
SigLIP_L16 = _size("SigLIP-L/16", "315.9M parameters without a head", patch_size=16, classifier="map", **L)
SigLIP_So400m14 = _size(
    "SigLIP-So400m/14", "427.7M parameters without a head", patch_size=14, classifier="map", **SO400M
)
SigLIP_So400m16 = _size(
    "SigLIP-So400m/16", "427.8M parameters without a head", patch_size=16, classifier="map", **SO400M
)
SigLIP_g_opt16 = _size("SigLIP-g-opt/16", "1163.1M parameters without a head", patch_size=16, classifier="map", **G_OPT)

# `vit.VIT_JAX` also reads big_vision's SigLIP files, so this family needs no format for them.
_SCALE = {"mean": [127.5] * 3, "std": [127.5] * 3}
_PREPROCESSING = {**_SCALE, "resize": "stretch", "crop_fraction": 1.0, "interpolation": "bilinear"}
# `attn_pool.norm` is the LayerNorm before the MLP of the attention pooling.
POOL_OF_TIMM = (
    (r"attn_pool\.latent", "pool/probe"),
    (r"attn_pool\.q", "pool/attention/query"),
    (r"attn_pool\.kv", "pool/attention/key|value"),
    (r"attn_pool\.proj", "pool/attention/out"),
    (r"attn_pool\.norm", "pool/norm"),
    (r"attn_pool\.mlp\.fc([12])", r"pool/mlp_\1"),
)


TIMM = dataclasses.replace(
    vit.TIMM,
    marker=r"attn_pool\.latent",
    renames=(*vit.TIMM.renames, *POOL_OF_TIMM),
    facts={**vit.TIMM.facts, "pool": "map", "preprocessing": {**_PREPROCESSING, "interpolation": "bicubic"}},
)


def read_huggingface_config(config, activation="gelu_pytorch_tanh", epsilon=1e-6):
    """Returns the facts in a config.json, with default activation, epsilon and heads; see `Format.read_config`."""
    config = {"hidden_act": activation, "layer_norm_eps": epsilon, "num_attention_heads": 12, **tower_of(config)}
    return vit.read_huggingface_config(config)


def tower_of(config):
    """Returns the fields of a config.json that describe the image tower."""
    tower = config.get("vision_config", config)
    if not isinstance(tower, dict):
        raise ValueError(f"`vision_config` must be a JSON object, not {tower!r}")
    return tower


def write_huggingface_config(arguments):
    """Returns the config.json of `SiglipVisionModel` and options; see `Format.write_config`."""
    if arguments["classifier"] != "map" or arguments["include_top"]:
        return None, {}
    return vit.huggingface_config(arguments, "siglip_vision_model", "SiglipVisionModel", square=True), {}


# Weight names of CLIP's and SigLIP's image towers in transformers. The last row of `TOWER` matches
# arrays that are ignored.
_TOWER = r"(?:vision_model\.)?"
_LAYER = _TOWER + r"encoder\.layers\.(\d+)\."
TOWER = (
    (_TOWER + r"embeddings\.patch_embedding", "embedding"),
    (_TOWER + r"embeddings\.position_embedding", "position_embedding/pos_embedding"),
    (_LAYER + r"layer_norm([12])", r"encoderblock_\1/norm_\2"),
    *vit.projections(_LAYER + r"self_attn\."),
    (_LAYER + r"self_attn\.out_proj", r"encoderblock_\1/attention/out"),
    (_LAYER + r"mlp\.fc([12])", r"encoderblock_\1/mlp_\2"),
    (_TOWER + r"post_layernorm", "encoder_norm"),
    (r"text_model\..*|text_projection\..*|logit_scale|logit_bias|.*\.position_ids", ""),
)
HUGGING_FACE = Format(
    "huggingface",
    _TOWER + r"embeddings\.patch_embedding\.bias",
    (
        *TOWER,
        (_TOWER + r"head\.probe", "pool/probe"),
        (_TOWER + r"head\.attention\.in_proj_(?:weight|bias)", "pool/attention/query|key|value"),
        (_TOWER + r"head\.attention\.out_proj", "pool/attention/out"),
        (_TOWER + r"head\.layernorm", "pool/norm"),
        (_TOWER + r"head\.mlp\.fc([12])", r"pool/mlp_\1"),
    ),
    layout="pytorch",
    facts={"epsilon": 1e-6, "position_resampling": "bicubic", "preprocessing": _PREPROCESSING},
    read_config=read_huggingface_config,
    write_config=write_huggingface_config,
)
# `SiglipForImageClassification` applies its classifier to the mean of the patch tokens, not to the attention pooling.
HUGGING_FACE_GAP = dataclasses.replace(
    HUGGING_FACE,
    renames=((r"classifier", "head"), (_TOWER + r"head\..*", ""), *HUGGING_FACE.renames),
    fits=lambda shapes, config: "classifier.weight" in shapes,
    write_config=None,
)

# The file names of SigLIP, but not of SigLIP 2, end in a numeric ID. Models with "384" in the name and 14-pixel patches
# use 378-pixel images.
_FILES = {
    "siglip": {
        "SigLIP-B/16": ("en_b16_224_63724782", "en_b16_256_60500360", "en_b16_384_68578854", "en_b16_512_68580893"),
        "SigLIP-L/16": ("en_l16_256_60552751", "en_l16_384_63634585"),
        "SigLIP-So400m/14": ("en_so400m_224_57633886", "en_so400m_384_58765454"),
        "SigLIP-So400m/16": ("i18n_so400m_16_256_78061115",),
    },
    "siglip2": {
        "SigLIP-B/32": ("b32_256",),
        "SigLIP-B/16": ("b16_224", "b16_256", "b16_384", "b16_512"),
        "SigLIP-L/16": ("l16_256", "l16_384", "l16_512"),
        "SigLIP-So400m/14": ("so400m14_224", "so400m14_384"),
        "SigLIP-So400m/16": ("so400m16_256", "so400m16_384", "so400m16_512"),
        "SigLIP-g-opt/16": ("g-opt16_256", "g-opt16_384"),
    },
}


def _rows():
    for collection, models in _FILES.items():
        for model, files in models.items():
            for file in files:
                path = f"{collection}/{'webli' if collection == 'siglip' else collection}_{file}"
                side = int(next(part for part in file.split("_") if part in ("224", "256", "384", "512")))
                side -= side % _size.table[model]["patch_size"]
                yield vit.big_vision_row(collection, path, model, 0, side, preprocessing=_PREPROCESSING)
    path = "siglip/webli_i18n_b16_256_66117334"
    yield vit.big_vision_row("siglip_i18n", path, "SigLIP-B/16", 0, 256, preprocessing=_PREPROCESSING)


FAMILY = _size.register(
    identity=(*vit.IDENTITY, "classifier", "mlp_dim"),
    formats=(TIMM, HUGGING_FACE, HUGGING_FACE_GAP),
    published=tuple(_rows()),
    reference="https://github.com/google-research/big_vision",
)
