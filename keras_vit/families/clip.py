"""CLIP image towers from OpenAI, LAION, DataComp and DFN.

The head projects to the space shared with the text tower.
"""

from dataclasses import replace

from keras_vit.checkpoints import names
from keras_vit.checkpoints.dialects import open_clip, timm, transformers
from keras_vit.checkpoints.dialects.dialect import Dialect, Folder, Token
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.families import inference, siglip
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, IMAGENET, WORDS, B, H, L, timm_row

G = {"hidden_size": 1408, "num_layers": 40, "mlp_dim": 6144, "num_heads": 16}
BIG_G = {"hidden_size": 1664, "num_layers": 48, "mlp_dim": 8192, "num_heads": 16}
_size = Sizes(
    pre_norm=True,
    patch_bias=False,
    epsilon=1e-5,
    position_resampling="bicubic_antialias",
    mlp="quick_gelu",
)
CLIP_B32 = _size("CLIP-B/32", "87.5M parameters without a head", patch_size=32, **B)
CLIP_B16 = _size("CLIP-B/16", "85.8M parameters without a head", patch_size=16, **B)
CLIP_L14 = _size("CLIP-L/14", "303.2M parameters without a head", patch_size=14, **L)
CLIP_H14 = _size("CLIP-H/14", "630.8M parameters without a head", patch_size=14, **H)
CLIP_g14 = _size("CLIP-g/14", "1011.2M parameters without a head", patch_size=14, **G)
CLIP_bigG14 = _size("CLIP-bigG/14", "1842.8M parameters without a head", patch_size=14, **BIG_G)

PREPROCESSING = {
    **IMAGENET,
    "mean": [255 * x for x in (0.48145466, 0.4578275, 0.40821073)],
    "std": [255 * x for x in (0.26862954, 0.26130258, 0.27577711)],
    "crop_fraction": 1.0,
}
_FACTS = Facts(epsilon=1e-5, position_resampling="bicubic_antialias", preprocessing=PREPROCESSING)


# Tags, by timm's name of the architecture, of the releases that were trained with QuickGELU; all
# others have the exact GELU. From timm 1.0.31 (notes in `vision_transformer.py`) and open_clip 3.3
# (`pretrained.py`).
QUICK_GELU = {
    "vit_base_patch32_clip_224": (
        "laion400m_e31",
        "laion400m_e32",
        "metaclip_2pt5b",
        "metaclip_400m",
        "openai",
    ),
    "vit_base_patch16_clip_224": ("dfn2b", "metaclip_2pt5b", "metaclip_400m", "openai"),
    "vit_large_patch14_clip_224": ("dfn2b", "metaclip_2pt5b", "metaclip_400m", "openai"),
    "vit_large_patch14_clip_336": ("openai",),
    "vit_huge_patch14_clip_224": ("dfn5b", "metaclip2_worldwide", "metaclip_2pt5b"),
    "vit_huge_patch14_clip_378": ("dfn5b",),
    "vit_gigantic_patch14_clip_224": ("metaclip_2pt5b",),
}


def gelu_of_release(architecture, tag):
    """Returns the argument `mlp` of published CLIP weights.

    `architecture` is timm's name of their architecture, and `tag` their tag.
    """
    is_quick = "quickgelu" in architecture or tag in QUICK_GELU.get(architecture, ())
    return "quick_gelu" if is_quick else "gelu"


def read_timm_config(config):
    """Returns the facts in timm's config.json; see `Dialect.read_config`."""
    # Without `act_layer`, the name or the tag of the model determines the kind of GELU.
    name, _, tag = config.get("architecture", "").partition(".")
    facts = timm.read_config(config)
    activation = (config.get("model_args") or {}).get("act_layer")
    tag = tag or (config.get("pretrained_cfg") or {}).get("tag")
    mlp = activation or (name and gelu_of_release(name, tag)) or None
    return replace(facts, exact_gelu=None, mlp=mlp)


TIMM = replace(
    timm.TIMM,
    marker="norm_pre.weight",
    table=(*timm.TIMM.table, ("norm_pre", "Transformer/pre_norm")),
    facts=_FACTS,
    read_config=read_timm_config,
)


def read_config(config):
    """Returns the facts in the config.json of a CLIP model or of its image tower; see
    `Dialect.read_config`."""
    defaults = {**siglip.DEFAULTS, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
    vision = {**defaults, **transformers.tower_config(config, "vision")}
    mlp = vision["hidden_act"]
    facts = transformers.read_config({**vision, "hidden_act": "gelu"})
    if mlp not in ("quick_gelu", "gelu"):
        raise ValueError(f"`hidden_act` must be quick_gelu or gelu, not {mlp!r}")
    return replace(facts, exact_gelu=None, mlp=mlp)


def write_config(arguments):
    """Returns the `Folder` for a CLIP image tower in transformers; see `Dialect.write_config`."""
    if not arguments["pre_norm"]:
        return None
    name = f"CLIPVisionModel{'WithProjection' if arguments['include_top'] else ''}"
    width = arguments["classes"]
    # Omits id2label, because a projection has no classes.
    arguments = {**arguments, "include_top": False}
    config = transformers.shared_config(
        arguments, "clip_vision_model", name, square=True, projection_dim=width
    )
    # The head is `visual_projection`.
    return Folder(config, tower="vision_model.", has_head_bias=False)


HUGGING_FACE = Dialect(
    "huggingface",
    "{tower}pre_layrnorm.weight",  # spelled as in transformers
    (
        *siglip.TOWER,
        ("{tower}embeddings.class_embedding", Token(names.CLASS_TOKEN, 1)),
        ("{tower}pre_layrnorm", "Transformer/pre_norm"),
        ("visual_projection", "head"),
    ),
    layout="pytorch",
    choices=siglip.CHOICES,
    facts=replace(_FACTS, class_row=True, position_resampling="bicubic"),
    read_config=read_config,
    write_config=write_config,
)
# The head of `CLIPForImageClassification` is not supported.
HUGGING_FACE_MEAN = replace(
    HUGGING_FACE,
    table=(("classifier", "head"), *HUGGING_FACE.table),
    facts=replace(HUGGING_FACE.facts, head_reads="the mean of the patches without a norm"),
    fits=lambda shapes, config: "classifier.weight" in shapes,
    write_config=None,
)

# Fields of `vision_cfg` that are supported, and their defaults in open_clip.
_OPEN_CLIP: dict = {
    "width": 768,
    "head_width": 64,
    "image_size": 224,
    "pool_type": "tok",
    # The arrays determine these fields, or the fields do not affect the output.
    **dict.fromkeys(
        ("layers", "patch_size", "mlp_ratio", "no_ln_pre", "pos_embed_type", "patch_dropout")
    ),
    # `final_ln_after_pool` selects the dialect.
    **dict.fromkeys(("final_ln_after_pool", "output_tokens", "timm_pool", "timm_proj")),
}


def read_open_clip_config(config):
    """Returns the facts in an open_clip_config.json; see `Dialect.read_config`."""
    pools = {"tok": "token", "avg": "avg"}
    resizes = {"shortest": "shorter_side", "squash": "stretch"}
    tower, facts = open_clip.read_tower(
        config, "vision_cfg", _OPEN_CLIP, {"pool_type": tuple(pools)}
    )
    defaults = {"resize_mode": "shortest", "interpolation": "bicubic"}
    images = {**defaults, **(config.get("preprocess_cfg") or {})}
    choices = {"resize_mode": tuple(resizes), "interpolation": ("bicubic", "bilinear")}
    open_clip.check_values(images, choices)
    preprocessing = {
        **PREPROCESSING,
        **{name: [255 * x for x in images[name]] for name in ("mean", "std") if name in images},
        "resize": resizes[images["resize_mode"]],
        "interpolation": images["interpolation"],
    }
    return replace(
        facts,
        num_heads=tower["width"] // tower["head_width"],
        image_size=tower["image_size"],
        pool=pools[tower["pool_type"]],
        preprocessing=preprocessing,
    )


def _is_original(shapes, config, norm_after_pool=False):
    """Returns whether a file has the dialect of CLIP's authors and open_clip.

    `norm_after_pool` selects files whose last norm follows the pooling.
    """
    # The reader of the config starts the message with the name of the file.
    if "class_embedding" in shapes and "ln_pre.weight" not in shapes and not config:
        raise ValueError(
            "it is missing, and without `ln_pre` the arrays do not determine the pooling"
        )
    tower = config["model_cfg"]["vision_cfg"] if config else {}
    return "class_embedding" in shapes and bool(tower.get("final_ln_after_pool")) == norm_after_pool


ORIGINAL = Dialect(
    "original",
    "conv1.weight",
    (
        ("conv1", "embedding"),
        ("class_embedding", Token(names.CLASS_TOKEN, 1)),
        ("positional_embedding", Token(names.POSITIONS, 2)),
        ("ln_pre", "Transformer/pre_norm"),
        *open_clip.layers("transformer.resblocks.{i}."),
        ("ln_post", "Transformer/encoder_norm"),
        ("proj", "head/kernel"),  # stored as (inputs, outputs), so not transposed
    ),
    layout="pytorch",
    prefixes=("visual.", ""),
    facts=_FACTS,
    config="open_clip_config.json",
    read_config=read_open_clip_config,
    fits=_is_original,
)
# CLIPA, whose last norm follows the pooling.
ORIGINAL_POOLED = replace(
    ORIGINAL,
    table=(("ln_post", "fc_norm"), *ORIGINAL.table),
    fits=lambda shapes, config: _is_original(shapes, config, norm_after_pool=True),
)


def infer(shapes, facts):
    """Returns the arguments of a CLIP tower, or None for other files.

    `mlp` is "unknown" if the file does not determine the kind of GELU.
    """
    if "Transformer/pre_norm/scale" not in shapes:
        return None
    return {"mlp": "unknown", **inference.infer(shapes, facts)}


# The size, the patch size and the side of the images, in pixels, of each file.
_FILES = {
    "openai": ("B/32/224", "B/16/224", "L/14/224", "L/14/336"),
    "laion2b": ("B/32/224", "B/16/224", "L/14/224", "H/14/224", "g/14/224", "bigG/14/224"),
    "datacompxl": ("B/32/224", "B/32/256", "B/16/224", "L/14/224"),
    "dfn2b": ("B/16/224", "L/14/224"),
    "dfn5b": ("H/14/224", "H/14/378"),
}
_SMALLER_CROPS = (
    "vit_base_patch16_clip_224.openai",
    "vit_base_patch32_clip_224.openai",
    "vit_base_patch32_clip_224.laion2b",
)
# Output size of the head, the size of the space shared with the text tower.
_UNITS = {"B": 512, "L": 768, "H": 1024, "g": 1024, "bigG": 1280}


def _rows():
    for collection, files in _FILES.items():
        for file in files:
            size, patch_size, side = file.split("/")
            architecture = f"vit_{WORDS[size]}_patch{patch_size}_clip_{side}"
            name = f"{architecture}.{collection}"
            gelu = {"mlp": gelu_of_release(architecture, collection)}
            fields = dict(PREPROCESSING)
            if name in _SMALLER_CROPS:
                fields["crop_fraction"] = 0.9
            if (collection, size) == ("laion2b", "L"):
                fields |= {"mean": [127.5] * 3, "std": [127.5] * 3}
            model = f"CLIP-{size}/{patch_size}"
            yield timm_row(collection, name, model, _UNITS[size], int(side), fields, gelu)


FAMILY = _size.register(
    identity=(*IDENTITY, "pre_norm", "mlp_dim"),
    infer=infer,
    dialects=(TIMM, HUGGING_FACE, HUGGING_FACE_MEAN, ORIGINAL, ORIGINAL_POOLED),
    published=tuple(_rows()),
    reference="https://github.com/mlfoundations/open_clip",
)
