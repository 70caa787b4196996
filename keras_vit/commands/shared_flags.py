"""Flags that several commands have: a model, its weights and class names, and data."""

import ast
import tempfile
from pathlib import Path

from absl import flags

import keras_vit
from keras_vit import data, export, files, training
from keras_vit.commands import command_line
from keras_vit.models import load_keras_file

FLAGS = flags.FLAGS


def define_model():
    """Defines `--model`, and `--variant` with `--weights`."""
    flags.DEFINE_string("model", "", "A run's workdir, the folder of an export or of its versions, or a .keras file.")
    flags.DEFINE_string("variant", "", "Instead of a model: a constructor, such as ViT_B16, for --weights.")
    flags.DEFINE_string("weights", "", "The name of published weights, a path, or a URL; random ones if not given.")


def define_class_names():
    flags.DEFINE_string("class_names", "", "A text file, one name a line; 'published' for those of ImageNet(-21k).")


def chosen_model():
    """`choose_model` of the flags."""
    return choose_model(FLAGS.model, FLAGS.variant, FLAGS.weights)


def choose_model(model, variant, weights):
    """`(model, details, title)` for the values of the flags; `details` are arguments of `export.saved_model`."""
    if bool(model) == bool(variant):
        raise ValueError(f"Either --model or --variant is needed. Received: model={model!r}, variant={variant!r}")
    if model:
        return *load_model(model), model
    if variant not in keras_vit.families.CONSTRUCTORS:
        known = ", ".join(keras_vit.families.CONSTRUCTORS)
        raise ValueError(f"The variants are {known}. Received: variant={variant!r}")
    model = getattr(keras_vit, variant)(weights=weights or None)
    return model, {}, f"{variant} with {weights or 'random'} weights"


def load_model(source):
    """A model, and what its export or run says about it: a dict of arguments of `export.saved_model`.

    `source` is a run's workdir, the folder of an export, or a .keras file, local or remote. A run that is not finished
    is taken at its best checkpoint, or its newest; a folder of versions at the newest one.
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
    is_done = files.exists(folder / "results.json")  # which is written after the export
    if files.exists(folder / "config.json") and not (newest and (is_done or not training.has_checkpoint(folder))):
        why = "the run is not done, and its export may be older" if newest else "the run has no export"
        run, config = training.load_checkpoint(folder, lambda line: print(f"{why}: {line}"))
        return run.model, {"class_names": run.inputs.test.class_names, "recipe": config.to_dict()}
    folder = newest or export.newest_version(folder) or folder
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


def read_class_names(source, classes):
    """The lines of a file, or with "published" the published names for this number of classes."""
    if source == "published":
        return keras_vit.predictions.class_names(classes)
    if not Path(source).is_file():
        raise ValueError(f"There is no such file. Received: class_names={source!r}")
    return Path(source).read_text(encoding="utf-8").splitlines()


def define_data():
    """Defines `--config`, of which the `data` group counts, and `--data`."""
    command_line.define_config()
    flags.DEFINE_multi_string(
        "data", [], "A field of a config's `data` group, FIELD=VALUE, instead of that of --config, or of the default."
    )


def names_data():
    """Whether any of the flags of data was used."""
    return bool(FLAGS.data) or _has_config()


def data_fields():
    """Every field of the `data` group with its value, a dict."""
    known = data.defaults()
    values = {**known, **FLAGS.config.to_dict()["data"]} if _has_config() else known
    for word in FLAGS.data:
        name, _, value = word.partition("=")
        if name not in known:
            raise ValueError(f"The fields of `data` are {', '.join(known)}. Received: --data={word}")
        try:
            values[name] = _parse(value, type(known[name]))
        except (ValueError, SyntaxError):
            kind = type(known[name]).__name__
            raise ValueError(f"`{name}` must be of the type {kind}. Received: --data={word}") from None
    return values


def _has_config():
    return any(FLAGS[name].present for name in FLAGS if name == "config" or name.startswith("config."))


def _parse(text, kind):
    if kind is bool:
        return text.lower() in ("true", "1", "on")
    if kind is tuple:
        value = ast.literal_eval(text if text.startswith("(") else f"({text},)")
        return value if isinstance(value, tuple) else (value,)
    return kind(text)
