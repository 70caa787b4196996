"""Families of models: sizes, published files and names of weights, one family a file.

To add a family, write a file like those here and import it below. It builds sizes with `Sizes` and calls `register`;
constructors, `from_pretrained`, the fields of configs, commands and messages follow.
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
    vit,
)
from keras_vit.families.bit import *  # noqa: F403
from keras_vit.families.bit import __all__ as _bit
from keras_vit.families.clip import *  # noqa: F403
from keras_vit.families.clip import __all__ as _clip
from keras_vit.families.deit import *  # noqa: F403
from keras_vit.families.deit import __all__ as _deit
from keras_vit.families.dino import *  # noqa: F403
from keras_vit.families.dino import __all__ as _dino
from keras_vit.families.dinov2 import *  # noqa: F403
from keras_vit.families.dinov2 import __all__ as _dinov2
from keras_vit.families.dinov3 import *  # noqa: F403
from keras_vit.families.dinov3 import __all__ as _dinov3
from keras_vit.families.eva02 import *  # noqa: F403
from keras_vit.families.eva02 import __all__ as _eva02
from keras_vit.families.flexivit import *  # noqa: F403
from keras_vit.families.flexivit import __all__ as _flexivit
from keras_vit.families.hybrid import *  # noqa: F403
from keras_vit.families.hybrid import __all__ as _hybrid
from keras_vit.families.ijepa import *  # noqa: F403
from keras_vit.families.ijepa import __all__ as _ijepa
from keras_vit.families.mae import *  # noqa: F403
from keras_vit.families.mae import __all__ as _mae
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
from keras_vit.families.siglip import __all__ as _siglip
from keras_vit.families.vit import *  # noqa: F403
from keras_vit.families.vit import __all__ as _vit

__all__ = [
    *_vit,
    *_hybrid,
    *_bit,
    *_dino,
    *_dinov2,
    *_dinov3,
    *_ijepa,
    *_mae,
    *_siglip,
    *_eva02,
    *_deit,
    *_clip,
    *_flexivit,
    "FAMILIES",
    "Family",
    "Format",
    "PublishedWeights",
    "Sizes",
    "canonical_name",
    "constructor_arguments",
    "constructor_name",
    "find_family",
    "find_size",
    "from_pretrained",
    "is_bit",
    "model_config",
    "model_fields",
    "parameters_of",
    "register",
    "sizes",
]
CONSTRUCTORS = (
    *_vit,
    *_hybrid,
    *_bit,
    *_dino,
    *_dinov2,
    *_dinov3,
    *_ijepa,
    *_mae,
    *_clip,
    *_deit,
    *_eva02,
    *_siglip,
    *_flexivit,
)
