"""I-JEPA, which has no class token. Its sine-cosine position embeddings are stored in the files."""

from dataclasses import replace

from keras_vit.checkpoints.dialects import timm, transformers
from keras_vit.checkpoints.dialects.dialect import Folder, NotSupportedError
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, IMAGENET, H

_G = {"hidden_size": 1408, "num_layers": 40, "mlp_dim": 6144, "num_heads": 16}
_size = Sizes(classifier="gap", exact_gelu=True, position_resampling="bicubic")
IJEPA_H14 = _size("IJEPA-H/14", "630.8M parameters without a head", patch_size=14, **H)
IJEPA_H16 = _size("IJEPA-H/16", "630.9M parameters without a head", patch_size=16, **H)
IJEPA_g16 = _size("IJEPA-g/16", "1011.4M parameters without a head", patch_size=16, **_G)


def write_config(arguments):
    """Returns the `Folder` for `IJepaModel` or `IJepaForImageClassification`; see
    `Dialect.write_config`."""
    if arguments["classifier"] != "gap" or arguments["rotary"] or arguments["num_registers"]:
        return None
    name = "IJepaForImageClassification" if arguments["include_top"] else "IJepaModel"
    if arguments["representation_size"]:
        raise NotSupportedError(f"{name} in transformers has no pooler")
    config = transformers.shared_config(arguments, "ijepa", name, qkv_bias=True)
    return Folder(config, tower="ijepa." if arguments["include_top"] else "")


HUGGING_FACE = replace(
    transformers.HUGGING_FACE,
    write_config=write_config,
    facts=replace(transformers.HUGGING_FACE.facts, preprocessing=IMAGENET),
    fits=lambda shapes, config: config.get("model_type") == "ijepa",
)
# The authors' files, converted to safetensors, may also contain the predictor's weights.
ORIGINAL = replace(
    timm.TIMM,
    prefixes=("target_encoder.module.", "target_encoder.", "module.", "encoder.module."),
    facts=replace(timm.TIMM.facts, preprocessing=IMAGENET, position_resampling="bicubic"),
)

FAMILY = _size.register(
    identity=(*IDENTITY, "classifier"),
    dialects=(HUGGING_FACE, ORIGINAL),
    reference="https://github.com/facebookresearch/ijepa",
)
