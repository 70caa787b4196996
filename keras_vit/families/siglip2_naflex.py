"""SigLIP 2 NaFlex image towers for images of any aspect ratio.

They have attention pooling and no head.
"""

import math
from dataclasses import replace

from keras_vit.checkpoints import names
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.dialects.transformers import tower_config
from keras_vit.checkpoints.dialects.vit_jax import VIT_JAX
from keras_vit.families import inference, siglip
from keras_vit.families.registry import Sizes
from keras_vit.families.shared import IDENTITY, B, big_vision_row
from keras_vit.models.naflex import NaFlexVisionTransformer

_size = Sizes(
    NaFlexVisionTransformer,
    patch_size=16,
    classifier="map",
    max_patches=256,
    input_shape=(256, 256, 3),
)
SigLIP2_NaFlex_B16 = _size("SigLIP2-NaFlex-B/16", "92.9M parameters without a head", **B)
SigLIP2_NaFlex_So400m16 = _size(
    "SigLIP2-NaFlex-So400m/16", "427.9M parameters without a head", **siglip.SO400M
)

_PREPROCESSING = {"mean": [127.5] * 3, "std": [127.5] * 3, "resize": "naflex", "crop_fraction": 1.0}


def infer(shapes, facts):
    """Infers the arguments of a NaFlex model; see `Family.infer`."""
    budget = facts.arguments.get("max_patches")
    arguments = inference.infer(shapes, facts) if budget else None
    return arguments and {**arguments, "max_patches": budget}


def adapt(weights, facts, config):
    """Reshapes the patch matrix to a kernel, and a grid of positions to a sequence."""
    channels = tower_config(config, "vision").get("num_channels", 3)
    kernel = weights.get(names.EMBEDDING)
    if not kernel or len(kernel.shape) != 2:
        return facts
    side = math.isqrt(kernel.shape[0] // channels)
    if side**2 * channels != kernel.shape[0]:
        return facts
    weights[names.EMBEDDING] = kernel.reshape((side, side, channels, kernel.shape[1]))
    arguments = {"max_patches": 256, **facts.arguments}  # the value of the published models
    positions = weights.get(names.POSITIONS)
    # big_vision stores a grid `(rows, columns, D)`.
    if positions and len(positions.shape) == 3 and positions.shape[0] > 1:
        rows, columns, hidden_size = positions.shape
        weights[names.POSITIONS] = positions.reshape((1, rows * columns, hidden_size))
        facts = replace(facts, grid=(rows, columns))
    return replace(facts, arguments=arguments)


def read_config(config):
    """Returns the facts in the config.json of `Siglip2Model` or `Siglip2VisionModel`; see
    `Dialect.read_config`."""
    budget = tower_config(config, "vision").get("num_patches", 256)
    return replace(siglip.read_config(config), arguments={"max_patches": budget})


BIG_VISION = replace(
    VIT_JAX,
    marker=names.EMBEDDING,
    fits=lambda shapes, config: len(shapes.get(names.EMBEDDING, (0,) * 4)) != 4,
    adapt=adapt,
)
HUGGING_FACE = replace(
    siglip.HUGGING_FACE,
    facts=Facts(
        epsilon=1e-6, position_resampling="bilinear_antialias", preprocessing=_PREPROCESSING
    ),
    read_config=read_config,
    fits=lambda shapes, config: any(
        name.endswith("patch_embedding.weight") and len(shape) == 2
        for name, shape in shapes.items()
    ),
    adapt=adapt,
    write_config=None,
)
_FILES = {
    "SigLIP2-NaFlex-B/16": "siglip2_b16_naflex",
    "SigLIP2-NaFlex-So400m/16": "siglip2_so400m16_naflex",
}

FAMILY = _size.register(
    identity=(*IDENTITY, "classifier", "mlp_dim", "max_patches"),
    infer=infer,
    dialects=(HUGGING_FACE, BIG_VISION),
    published=tuple(
        big_vision_row("siglip2", f"siglip2/{file}", model, 0, 256, preprocessing=_PREPROCESSING)
        for model, file in _FILES.items()
    ),
    reference="https://github.com/huggingface/transformers",
)
