"""SigLIP and SigLIP 2 image towers for fixed image sizes, with attention pooling."""

import re
from dataclasses import replace

from keras_vit.checkpoints import names
from keras_vit.checkpoints.dialects import timm, transformers
from keras_vit.checkpoints.dialects.dialect import IGNORED, Dialect, Folder, Packed, Token
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, B, L, big_vision_row

SO400M = {"hidden_size": 1152, "num_layers": 27, "mlp_dim": 4304, "num_heads": 16}
G_OPT = {"hidden_size": 1536, "num_layers": 40, "mlp_dim": 6144, "num_heads": 16}

_size = Sizes(classifier="map")
SigLIP_B32 = _size("SigLIP-B/32", "94.5M parameters without a head", patch_size=32, **B)
SigLIP_B16 = _size("SigLIP-B/16", "92.9M parameters without a head", patch_size=16, **B)
SigLIP_L16 = _size("SigLIP-L/16", "315.9M parameters without a head", patch_size=16, **L)
SigLIP_So400m14 = _size(
    "SigLIP-So400m/14", "427.7M parameters without a head", patch_size=14, **SO400M
)
SigLIP_So400m16 = _size(
    "SigLIP-So400m/16", "427.8M parameters without a head", patch_size=16, **SO400M
)
SigLIP_g_opt16 = _size(
    "SigLIP-g-opt/16", "1163.1M parameters without a head", patch_size=16, **G_OPT
)

# `VIT_JAX` also reads big_vision's SigLIP files, so this family needs no dialect for them.
_SCALE = {"mean": [127.5] * 3, "std": [127.5] * 3}
_PREPROCESSING = {**_SCALE, "resize": "stretch", "crop_fraction": 1.0, "interpolation": "bilinear"}
_POOL = "MAPHead_0/MultiHeadDotProductAttention_0/"
# `attn_pool.norm` is the LayerNorm before the MLP of the attention pooling.
POOL_OF_TIMM = (
    ("attn_pool.latent", "MAPHead_0/probe"),
    ("attn_pool.q", f"{_POOL}query"),
    ("attn_pool.kv", Packed(f"{_POOL}key", f"{_POOL}value")),
    ("attn_pool.proj", f"{_POOL}out"),
    ("attn_pool.norm", "MAPHead_0/LayerNorm_0"),
    ("attn_pool.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
    ("attn_pool.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
)
TIMM = replace(
    timm.TIMM,
    marker="attn_pool.latent",
    table=(*timm.TIMM.table, *POOL_OF_TIMM),
    facts=replace(
        timm.TIMM.facts, pool="map", preprocessing={**_PREPROCESSING, "interpolation": "bicubic"}
    ),
)


# Defaults of missing fields in a config.json.
DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "num_attention_heads": 12,
}


def read_config(config):
    """Returns the facts in a config.json; see `Dialect.read_config`."""
    vision = transformers.tower_config(config, "vision")
    return transformers.read_config({**DEFAULTS, **vision})


def write_config(arguments):
    """Returns the `Folder` for `SiglipVisionModel`; see `Dialect.write_config`."""
    if arguments["classifier"] != "map" or arguments["include_top"]:
        return None
    config = transformers.shared_config(
        arguments, "siglip_vision_model", "SiglipVisionModel", square=True
    )
    return Folder(config)


# CLIP's and SigLIP's image towers in transformers.
CHOICES = {"tower": ("", "vision_model.")}
TOWER = (
    ("{tower}embeddings.patch_embedding", "embedding"),
    ("{tower}embeddings.position_embedding.weight", Token(names.POSITIONS, 2)),
    *transformers.clip_layers("{tower}encoder.layers.{i}."),
    ("{tower}post_layernorm", "Transformer/encoder_norm"),
    ("text_model.{rest}", IGNORED),
    ("text_projection.{rest}", IGNORED),
    ("logit_scale", IGNORED),
    ("logit_bias", IGNORED),
    ("{rest}.position_ids", IGNORED),
)
HUGGING_FACE = Dialect(
    "huggingface",
    "{tower}embeddings.patch_embedding.bias",
    (
        *TOWER,
        ("{tower}head.probe", "MAPHead_0/probe"),
        (
            "{tower}head.attention.in_proj_{kind}",
            Packed(f"{_POOL}query", f"{_POOL}key", f"{_POOL}value"),
        ),
        ("{tower}head.attention.out_proj", f"{_POOL}out"),
        ("{tower}head.layernorm", "MAPHead_0/LayerNorm_0"),
        ("{tower}head.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
        ("{tower}head.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
    ),
    layout="pytorch",
    choices=CHOICES,
    facts=Facts(epsilon=1e-6, position_resampling="bicubic", preprocessing=_PREPROCESSING),
    read_config=read_config,
    write_config=write_config,
)
# `SiglipForImageClassification` applies its classifier to the mean of the patch tokens, not to the
# attention pooling.
HUGGING_FACE_GAP = replace(
    HUGGING_FACE,
    table=(("classifier", "head"), ("{tower}head.{rest}", IGNORED), *HUGGING_FACE.table),
    fits=lambda shapes, config: "classifier.weight" in shapes,
    write_config=None,
)

# The file names of SigLIP, but not of SigLIP 2, end in a numeric ID. Models with "384" in the name
# and 14-pixel patches use 378-pixel images.
_FILES = {
    "siglip": {
        "SigLIP-B/16": (
            "en_b16_224_63724782",
            "en_b16_256_60500360",
            "en_b16_384_68578854",
            "en_b16_512_68580893",
        ),
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
                prefix = "webli" if collection == "siglip" else collection
                path = f"{collection}/{prefix}_{file}"
                side = int(re.search("224|256|384|512", file)[0])
                side -= side % _size.table[model]["patch_size"]
                yield big_vision_row(collection, path, model, 0, side, preprocessing=_PREPROCESSING)
    path = "siglip/webli_i18n_b16_256_66117334"
    yield big_vision_row("siglip_i18n", path, "SigLIP-B/16", 0, 256, preprocessing=_PREPROCESSING)


FAMILY = _size.register(
    identity=(*IDENTITY, "classifier", "mlp_dim"),
    dialects=(TIMM, HUGGING_FACE, HUGGING_FACE_GAP),
    published=tuple(_rows()),
    reference="https://github.com/google-research/big_vision",
)
