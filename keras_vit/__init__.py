"""Vision Transformers for Keras 3, from "An Image is Worth 16x16 Words" (arXiv 2010.11929) and
later papers.

`import keras_vit` imports only Keras and its backend. Modules with further dependencies, such as
`keras_vit.data` and `keras_vit.training`, are imported on first use.
"""

# ruff: noqa: F401
import importlib
import typing

__version__ = "0.2.0.dev0"  # setup.cfg reads this version

try:
    import keras as _keras
except ImportError as error:
    if error.name in ("tensorflow", "jax", "torch"):
        raise ImportError(
            f"keras_vit needs a backend for Keras, and {error.name} is not installed. Install one "
            'of: pip install "keras_vit[cpu]" (TensorFlow), "keras_vit[gpu]", "keras_vit[tpu]", or '
            '"keras_vit[jax]" with the environment variable KERAS_BACKEND=jax.',
            name=error.name,
        ) from error
    raise

from keras_vit import checkpoints, families, layers, models, naflex, preprocessing, text
from keras_vit.families import from_pretrained
from keras_vit.layers import *  # noqa: F403
from keras_vit.layers import __all__ as _layers
from keras_vit.models import *  # noqa: F403
from keras_vit.models import __all__ as _models
from keras_vit.predictions import decode_predictions
from keras_vit.preprocessing import Preprocessing, preprocess_input, preprocessing_of

# Modules imported on first use.
_LAZY = (
    "cost",
    "data",
    "evaluation",
    "export",
    "inspection",
    "losses",
    "optimizers",
    "recipes",
    "tasks",
    "tpu",
    "training",
)
# Functions and classes imported on first use, each with the module that defines it.
_FUNCTIONS = {
    "FeatureModel": "models.features",
    "at_patch_size": "models.patch_sizes",
    "backbone": "models.backbone",
    "enable_lora": "models.freezing",
    "features": "models.features",
    "flops": "cost",
    "freeze": "models.freezing",
    "unfreeze": "models.freezing",
    "zero_shot": "models.zero_shot",
}

# These imports tell type checkers, editors and the API reference which names `__getattr__` finds.
if typing.TYPE_CHECKING:
    from keras_vit import (
        cost,
        data,
        evaluation,
        export,
        inspection,
        losses,
        optimizers,
        recipes,
        tasks,
        tpu,
        training,
    )
    from keras_vit.cost import flops
    from keras_vit.models.backbone import backbone
    from keras_vit.models.features import FeatureModel, features
    from keras_vit.models.freezing import enable_lora, freeze, unfreeze
    from keras_vit.models.patch_sizes import at_patch_size
    from keras_vit.models.zero_shot import zero_shot

__all__ = [
    *_layers,
    *_models,
    *families.CONSTRUCTORS,
    *_LAZY,
    *_FUNCTIONS,
    "Preprocessing",
    "checkpoints",
    "decode_predictions",
    "families",
    "from_pretrained",
    "layers",
    "models",
    "naflex",
    "preprocess_input",
    "preprocessing",
    "preprocessing_of",
    "text",
]

# The constructors of all sizes, such as `keras_vit.ViT_B16` and `keras_vit.models.ViT_B16`.
globals().update(families.CONSTRUCTORS)
vars(models).update(families.CONSTRUCTORS)


def __getattr__(name):
    if name in _LAZY:
        return importlib.import_module(f"keras_vit.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"keras_vit.{_FUNCTIONS[name]}"), name)
    raise AttributeError(f"module 'keras_vit' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
