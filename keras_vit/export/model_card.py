"""What an export says about itself."""

import importlib.metadata
import json
import os
import platform

import keras
import tensorflow as tf

from keras_vit.checkpoints.architecture_inference import architecture_of, describe
from keras_vit.checkpoints.vit_jax_names import vit_jax_shapes

FILE = "assets.extra/model_card.json"


def model_card(model, **details):
    """The card of a model, plain data.

    Args:
        model: a built model.
        **details: further entries.

    Returns:
        A dict with "model", "architecture", the details and "versions".
    """
    found = architecture_of(vit_jax_shapes(model))
    known = {key: value for key, value in found.items() if value is not None}
    return {
        "model": model.name,
        "architecture": {
            "description": describe(found),
            "parameters": model.count_params(),
            "image_shape": list(model.input_shape[1:]),
            **known,
        },
        **details,
        "versions": {
            "keras_vit": _version("keras_vit"),
            "keras": keras.version(),
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
        },
    }


def write_card(folder, card):
    """Writes a card into the folder of a version."""
    with open(os.path.join(folder, FILE), "w", encoding="utf-8") as file:
        json.dump(card, file, indent=2, ensure_ascii=False)
        file.write("\n")


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
