"""Families of models: sizes, published files and names of weights, one family a file.

To add a family, write a file like those here and import it below. It builds sizes with `Sizes` and calls `register`;
constructors, `from_pretrained`, the fields of configs, commands and messages follow.
"""

from keras_vit.checkpoints.registry import FAMILIES, Family, Format, PublishedWeights, find_size
from keras_vit.families import axial, bit, hybrid, vit  # noqa: F401
from keras_vit.families.bit import *  # noqa: F403
from keras_vit.families.bit import __all__ as _bit
from keras_vit.families.hybrid import *  # noqa: F403
from keras_vit.families.hybrid import __all__ as _hybrid
from keras_vit.families.registry import (
    Sizes,
    arguments_of,
    canonical_name,
    constructor_arguments,
    constructor_name,
    find_family,
    from_pretrained,
    is_bit,
    model_config,
    model_fields,
    register,
    sizes,
)
from keras_vit.families.vit import *  # noqa: F403
from keras_vit.families.vit import __all__ as _vit

__all__ = [
    *_vit,
    *_hybrid,
    *_bit,
    "FAMILIES",
    "Family",
    "Format",
    "PublishedWeights",
    "Sizes",
    "arguments_of",
    "canonical_name",
    "constructor_arguments",
    "constructor_name",
    "find_family",
    "find_size",
    "from_pretrained",
    "is_bit",
    "model_config",
    "model_fields",
    "register",
    "sizes",
]
CONSTRUCTORS = (*_vit, *_hybrid, *_bit)
