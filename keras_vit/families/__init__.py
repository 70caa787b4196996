"""Model families, one per module: named sizes, published weights and weight names.

To add a family, write a module like these and add its name to `_MODULES`. The module defines sizes
with `Sizes` and calls `Sizes.register`. Constructors, `from_pretrained`, config fields, commands
and messages are derived from the registry.
"""

import importlib

from keras_vit.checkpoints.dialects.dialect import Dialect
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.registry import FAMILIES, Family, PublishedWeights, find_size
from keras_vit.families.pretrained import from_pretrained
from keras_vit.families.registry import (
    Sizes,
    canonical_name,
    constructor_arguments,
    constructor_name,
    find_family,
    model_class,
    model_config,
    model_fields,
    parameters_of,
    register,
    sizes,
)

# The families are registered in this order. Files are matched against the last one first.
_MODULES = (
    "vit",
    "axial",
    "bit",
    "siglip",
    "clip",
    "deit",
    "dino",
    "dinov2",
    "dinov3",
    "dpt",
    "eva02",
    "flexivit",
    "hybrid",
    "ijepa",
    "mae",
    "siglip2_naflex",
)
for _name in (*_MODULES, "towers_writing"):
    importlib.import_module(f"{__name__}.{_name}")
from keras_vit.families.towers import text_tower, two_towers  # noqa: E402, after the families

CONSTRUCTORS = {
    name: function for family in FAMILIES for name, function in family.functions.items()
}
globals().update(CONSTRUCTORS)
__all__ = [
    "FAMILIES",
    "Dialect",
    "Facts",
    "Family",
    "PublishedWeights",
    "Sizes",
    "canonical_name",
    "constructor_arguments",
    "constructor_name",
    "find_family",
    "find_size",
    "from_pretrained",
    "model_class",
    "model_config",
    "model_fields",
    "parameters_of",
    "register",
    "sizes",
    "text_tower",
    "two_towers",
]
__all__.extend(CONSTRUCTORS)
