"""I-JEPA, which has no class token. Its sine-cosine position embeddings are stored in the files."""

import dataclasses

from keras_vit.families import vit
from keras_vit.families.registry import Sizes
from keras_vit.families.vit import IMAGENET, H

_PARTS = {"classifier": "gap", "exact_gelu": True, "position_resampling": "bicubic"}
_G = {"hidden_size": 1408, "num_layers": 40, "mlp_dim": 6144, "num_heads": 16}
_size = Sizes()
IJEPA_H14 = _size("IJEPA-H/14", "630.8M parameters without a head", patch_size=14, **_PARTS, **H)
IJEPA_H16 = _size("IJEPA-H/16", "630.9M parameters without a head", patch_size=16, **_PARTS, **H)
IJEPA_g16 = _size("IJEPA-g/16", "1011.4M parameters without a head", patch_size=16, **_PARTS, **_G)


def write_huggingface_config(arguments):
    """Returns the config.json of `IJepaModel` or `IJepaForImageClassification`; see `Format.write_config`."""
    if arguments["classifier"] != "gap" or arguments["rotary"] or arguments["num_registers"]:
        return None, {}
    name = "IJepaForImageClassification" if arguments["include_top"] else "IJepaModel"
    if arguments["representation_size"]:
        return f"{name} in transformers has no pooler", {}
    prefix = "ijepa." if arguments["include_top"] else ""
    return vit.huggingface_config(arguments, "ijepa", name, qkv_bias=True), {"prefix": prefix}


HUGGING_FACE = dataclasses.replace(
    vit.HUGGING_FACE,
    write_config=write_huggingface_config,
    facts={**vit.HUGGING_FACE.facts, "preprocessing": IMAGENET},
    fits=lambda shapes, config: config.get("model_type") == "ijepa",
)
# The authors' files, converted to safetensors, may also contain the predictor's weights.
ORIGINAL = dataclasses.replace(
    vit.TIMM,
    prefixes=("target_encoder.module.", "target_encoder.", "module.", "encoder.module."),
    facts={**vit.TIMM.facts, "preprocessing": IMAGENET, "position_resampling": "bicubic"},
)

FAMILY = _size.register(
    identity=(*vit.IDENTITY, "classifier"),
    formats=(HUGGING_FACE, ORIGINAL),
    reference="https://github.com/facebookresearch/ijepa",
)
