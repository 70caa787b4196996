"""What commands take for `--model`, and for `--variant` with `--weights`."""

import os
from pathlib import Path

import keras_vit
from keras_vit import export
from keras_vit.models import load_keras_file


def load_model(source):
    """A model, and what its export or run says about it: a dict of arguments of `export.saved_model`."""
    if source.endswith(".keras"):
        if not os.path.exists(source):
            raise ValueError(f"There is no such file. Received: model={source!r}")
        return load_keras_file(source, compile=False), {}
    folder = Path(source)
    versions = [path for path in (folder / "export").glob("*") if path.name.isdecimal()]
    if versions:
        folder = max(versions, key=lambda path: int(path.name))
    elif (folder / "config.json").exists():
        raise ValueError(
            f"The run is not finished; the command that started it continues it. Received: model={source!r}"
        )
    card = export.load_card(folder)
    preprocessing = card["preprocessing"]
    return export.load(folder), {
        "class_names": card["class_names"],
        "activation": card["activation"],
        "rounding": preprocessing["rounding"],
        "exif": preprocessing["exif"],
        "recipe": card["training"],
        "metrics": card["metrics"],
    }


def build_model(variant, weights):
    """A model of a named size with published weights or those of a file, or with "" its random initial ones."""
    if variant not in keras_vit.models.__all__:
        raise ValueError(f"The variants are {', '.join(keras_vit.models.__all__)}. Received: variant={variant!r}")
    return getattr(keras_vit, variant)(weights=weights or None)
