"""What commands take for `--model`, and for `--variant` with `--weights`."""

import tempfile

import keras_vit
from keras_vit import export, files
from keras_vit.models import load_keras_file


def load_model(source):
    """A model, and what its export or run says about it: a dict of arguments of `export.saved_model`."""
    if source.endswith(".keras"):
        if not files.exists(source):
            raise ValueError(f"There is no such file. Received: model={source!r}")
        return _load_keras_file(source), {}
    folder = files.as_path(source)
    exports = files.list_dir(folder / "export") if files.is_dir(folder / "export") else []
    versions = [int(name) for name in exports if name.isdecimal()]
    if versions:
        folder = folder / "export" / str(max(versions))
    elif files.exists(folder / "config.json"):
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


def _load_keras_file(source):
    if not files.is_remote(source):
        return load_keras_file(source, compile=False)
    with tempfile.TemporaryDirectory() as folder:
        files.copy(source, f"{folder}/model.keras")
        return load_keras_file(f"{folder}/model.keras", compile=False)


def build_model(variant, weights):
    """A model of a named size with published weights or those of a file, or with "" its random initial ones."""
    if variant not in keras_vit.models.__all__:
        raise ValueError(f"The variants are {', '.join(keras_vit.models.__all__)}. Received: variant={variant!r}")
    return getattr(keras_vit, variant)(weights=weights or None)
