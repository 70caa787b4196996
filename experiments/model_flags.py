"""What commands take for `--model`, and for `--variant` with `--weights`."""

import tempfile
from pathlib import Path

import keras_vit
from keras_vit import export, files, training
from keras_vit.models import load_keras_file


def load_model(source):
    """A model, and what its export or run says about it: a dict of arguments of `export.saved_model`.

    Args:
        source: a run's workdir, the folder of an export, or a .keras file; any path of `tf.io.gfile`. A run that is
            not finished is taken at its best checkpoint, or its newest.

    Raises:
        ValueError: it is none of these, it is damaged, or it cannot be read.
    """
    try:
        return _load(source)
    except OSError as error:
        reason = str(error).split("\n")[0][:200]
        raise ValueError(f"The model cannot be read ({reason}). Received: model={source!r}") from error


def _load(source):
    if source.endswith(".keras"):
        if not files.exists(source):
            raise ValueError(f"There is no such file. Received: model={source!r}")
        return _load_keras_file(source), {}
    folder = files.as_path(source)
    newest = export.newest_version(folder / "export")
    if not newest and files.exists(folder / "config.json"):
        run, config = training.load_checkpoint(folder, lambda line: print(f"the run is not finished: {line}"))
        return run.model, {"class_names": run.inputs.test.class_names, "recipe": config.to_dict()}
    folder = newest or folder
    if not files.exists(files.as_path(folder) / export.CARD):
        raise ValueError(f"The folder holds neither a run nor an export. Received: model={source!r}")
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
    if variant not in keras_vit.families.CONSTRUCTORS:
        known = ", ".join(keras_vit.families.CONSTRUCTORS)
        raise ValueError(f"The variants are {known}. Received: variant={variant!r}")
    return getattr(keras_vit, variant)(weights=weights or None)


def read_class_names(source, classes):
    """The lines of a file, or with "published" the published names for this number of classes."""
    if source == "published":
        return keras_vit.predictions.class_names(classes)
    if not Path(source).is_file():
        raise ValueError(f"There is no such file. Received: class_names={source!r}")
    return Path(source).read_text(encoding="utf-8").splitlines()
