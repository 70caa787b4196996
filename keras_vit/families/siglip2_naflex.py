"""SigLIP 2 NaFlex image towers for images of any aspect ratio, with attention pooling and no head."""

import dataclasses

from keras_vit.families import siglip, vit
from keras_vit.families.registry import Sizes
from keras_vit.families.vit import B
from keras_vit.models.naflex import NaFlexVisionTransformer

_NAFLEX = {"patch_size": 16, "classifier": "map", "max_patches": 256, "input_shape": (256, 256, 3)}
_size = Sizes(NaFlexVisionTransformer)
SigLIP2_NaFlex_B16 = _size("SigLIP2-NaFlex-B/16", "92.9M parameters without a head", **_NAFLEX, **B)
SigLIP2_NaFlex_So400m16 = _size(
    "SigLIP2-NaFlex-So400m/16", "427.9M parameters without a head", **_NAFLEX, **siglip.SO400M
)

_PREPROCESSING = {"mean": [127.5] * 3, "std": [127.5] * 3, "resize": "naflex", "crop_fraction": 1.0}


def infer(shapes, facts):
    """Infers the arguments of a NaFlex model; see `Family.infer`."""
    budget = facts.get("max_patches") or facts.get("arguments", {}).get("max_patches")
    arguments = vit.infer(shapes, facts) if budget else None
    return None if arguments is None else {**arguments, "max_patches": budget}


def read_huggingface_config(config):
    """Returns the facts in the config.json of `Siglip2Model` or `Siglip2VisionModel`; see `Format.read_config`."""
    tower = siglip.tower_of(config)
    facts = {"max_patches": tower.get("num_patches", 256), "num_channels": tower.get("num_channels", 3)}
    return {**siglip.read_huggingface_config(config), **facts}


HUGGING_FACE = dataclasses.replace(
    siglip.HUGGING_FACE,
    facts={"epsilon": 1e-6, "position_resampling": "bilinear_antialias", "preprocessing": _PREPROCESSING},
    read_config=read_huggingface_config,
    fits=lambda shapes, config: any(n.endswith("patch_embedding.weight") and len(s) == 2 for n, s in shapes.items()),
    write_config=None,
)
_FILES = {"SigLIP2-NaFlex-B/16": "siglip2_b16_naflex", "SigLIP2-NaFlex-So400m/16": "siglip2_so400m16_naflex"}

FAMILY = _size.register(
    identity=(*vit.IDENTITY, "classifier", "mlp_dim", "max_patches"),
    infer=infer,
    formats=(HUGGING_FACE,),
    published=tuple(
        vit.big_vision_row("siglip2", f"siglip2/{file}", model, 0, 256, preprocessing=_PREPROCESSING)
        for model, file in _FILES.items()
    ),
    reference="https://github.com/huggingface/transformers",
)
