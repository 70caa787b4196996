"""Model families, one per module: named sizes, published weights and weight names.

To add a family, write a module like these, import it below, and add its constructors to `__all__`. The module defines
sizes with `Sizes` and calls `Sizes.register`. Constructors, `from_pretrained`, config fields, commands and messages are
derived from the registry.
"""

from keras_vit.checkpoints.registry import FAMILIES, Family, Format, PublishedWeights, find_size
from keras_vit.families import (  # noqa: F401
    axial,
    bit,
    clip,
    deit,
    dino,
    dinov2,
    dinov3,
    eva02,
    flexivit,
    hybrid,
    ijepa,
    mae,
    siglip,
    siglip2_naflex,
    vit,
)
from keras_vit.families.bit import *  # noqa: F403
from keras_vit.families.clip import *  # noqa: F403
from keras_vit.families.deit import *  # noqa: F403
from keras_vit.families.dino import *  # noqa: F403
from keras_vit.families.dinov2 import *  # noqa: F403
from keras_vit.families.dinov3 import *  # noqa: F403
from keras_vit.families.eva02 import *  # noqa: F403
from keras_vit.families.flexivit import *  # noqa: F403
from keras_vit.families.hybrid import *  # noqa: F403
from keras_vit.families.ijepa import *  # noqa: F403
from keras_vit.families.mae import *  # noqa: F403
from keras_vit.families.registry import (
    Sizes,
    canonical_name,
    constructor_arguments,
    constructor_name,
    find_family,
    from_pretrained,
    is_bit,
    model_config,
    model_fields,
    parameters_of,
    register,
    sizes,
)
from keras_vit.families.siglip import *  # noqa: F403
from keras_vit.families.siglip2_naflex import *  # noqa: F403
from keras_vit.families.vit import *  # noqa: F403

__all__ = [  # mkdocstrings parses this list statically
    *vit.__all__, *hybrid.__all__, *bit.__all__, *dino.__all__, *dinov2.__all__, *dinov3.__all__, *ijepa.__all__,
    *mae.__all__, *clip.__all__, *deit.__all__, *eva02.__all__, *siglip.__all__, *siglip2_naflex.__all__,
    *flexivit.__all__,
    "FAMILIES", "Family", "Format", "PublishedWeights", "Sizes", "canonical_name", "constructor_arguments",
    "constructor_name", "find_family", "find_size", "from_pretrained", "is_bit", "model_config", "model_fields",
    "parameters_of", "register", "sizes",
]  # fmt: skip
CONSTRUCTORS = tuple(__all__[: __all__.index("FAMILIES")])
