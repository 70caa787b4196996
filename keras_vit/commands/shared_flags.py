"""Defines flags that several commands share: the model, its weights, class names and data."""

import sys
from pathlib import Path

from absl import flags

import keras_vit
from keras_vit import data, evaluation, export, files, training
from keras_vit.evaluation.collecting import load_run_inputs
from keras_vit.models import load_keras_file
from keras_vit.models.zero_shot import class_names_of

FLAGS = flags.FLAGS


def define_model():
    """Defines `--model`, `--variant`, `--weights` and `--text_embeddings`."""
    flags.DEFINE_string("model", "", "Workdir of a run, folder of an export or of its versions, or a .keras file.")
    flags.DEFINE_string("variant", "", "Constructor to call with --weights instead of --model, such as ViT_B16.")
    flags.DEFINE_string(
        "weights", "", "Published weights, a path or a URL; without --variant, they determine the model."
    )
    flags.DEFINE_string("text_embeddings", "", "An .npz file with text embeddings of the classes, for CLIP or SigLIP.")


def define_class_names():
    flags.DEFINE_string("class_names", "", "Text file with one name per line, or 'published' for ImageNet(-21k).")


def define_data():
    """Defines `--data` and `--data_path`."""
    flags.DEFINE_string("data", "", "Dataset (digits, cifar10, tfds:NAME) or folder; by default, the run's data.")
    flags.DEFINE_string("data_path", "", "Folder of the dataset, if it is not the usual folder.")


def load_data(model, details, splits=("train", "test"), max_bad_share=0.01):
    """Returns `(inputs, title)` for the dataset of `--data` or the run, or `(None, "")` if neither is known.

    A folder in `--data` must have one subfolder per class, or one subfolder per split with subfolders per class.
    """
    name, path = FLAGS.data, FLAGS.data_path
    if name and name not in data.DATASETS and not path and files.is_dir(name):
        name, path = "folder", name
    config = (details.get("recipe") or {}).get("data") or {}
    if name:
        inputs = evaluation.load_inputs(model, name, path, splits, max_bad_share=max_bad_share)
    elif config:
        config = {**config, **({"path": path} if path else {}), "max_bad_share": max_bad_share}
        inputs, name = load_run_inputs(model, config), config.get("name", "digits")
    else:
        return None, ""
    return inputs, f"{name} {path or ('' if FLAGS.data else config.get('path', ''))}".strip()


def chosen_model():
    """Loads the model that the flags select.

    Returns:
        `(model, details, title)`; `details` are arguments of `export.saved_model`.
    """
    source, variant, weights, details = FLAGS.model, FLAGS.variant, FLAGS.weights, {}
    if bool(source) == bool(variant or weights):
        raise ValueError(
            "Pass either --model, or at least one of --variant and --weights. "
            f"Received: model={source!r}, variant={variant!r}, weights={weights!r}"
        )
    if source:
        model, details = load_model(source)
    elif not variant:
        model = keras_vit.from_pretrained(weights)
    elif variant in keras_vit.families.CONSTRUCTORS:
        model = getattr(keras_vit, variant)(weights=weights or None)
    else:
        known = ", ".join(keras_vit.families.CONSTRUCTORS)
        raise ValueError(f"--variant must be one of {known}. Received: variant={variant!r}")
    if FLAGS.text_embeddings:
        model = keras_vit.zero_shot(model, FLAGS.text_embeddings)
        details = {"class_names": class_names_of(model)}
    return model, details, source or (f"{variant} with {weights or 'random'} weights" if variant else weights)


def load_model(source):
    """Returns a model and the details of its export or run, a dict of arguments of `export.saved_model`.

    `source` is a run's workdir, the folder of an export or of its versions, or a .keras file, local or remote. An
    unfinished run is loaded from its best checkpoint, or else its newest; of several versions, the newest is loaded.
    """
    try:
        return _load(source)
    except OSError as error:
        reason = str(error).split("\n")[0][:200]
        raise ValueError(f"The model cannot be read ({reason}). Received: model={source!r}") from error


def _load(source):
    if source.endswith(".keras"):
        if not files.exists(source):
            raise ValueError(f"The file does not exist. Received: model={source!r}")
        model = load_keras_file(source, compile=False)
        names = class_names_of(model)
        return model, {"class_names": names} if names else {}
    # Load an unfinished run, or a run without an export, from a checkpoint.
    folder = files.as_path(source)
    newest = export.newest_version(folder / "export")
    is_done = files.exists(folder / "results.json")  # written after the export
    if files.exists(folder / "config.json") and not (newest and (is_done or not training.has_checkpoint(folder))):
        why = "the run is not finished, and its export may be older" if newest else "the run has no export"
        run, config = training.load_checkpoint(folder, lambda line: print(f"{why}: {line}", file=sys.stderr))
        return run.model, {"class_names": run.inputs.test.class_names, "recipe": config.to_dict()}
    # Load an export from a run, a folder of versions, or a version.
    folder = newest or export.newest_version(folder) or folder
    if not files.exists(files.as_path(folder) / export.CARD):
        raise ValueError(f"The folder contains neither a run nor an export. Received: model={source!r}")
    card = export.load_card(folder)
    details = {name: card[name] for name in ("class_names", "activation", "metrics")}
    details |= {name: card["preprocessing"][name] for name in ("rounding", "exif")}
    return export.load(folder), {**details, "recipe": card["training"]}


def read_class_names(source, classes):
    """Returns the lines of the file `source`, or the published names for this number of classes for "published"."""
    if source == "published":
        return keras_vit.predictions.class_names(classes)
    if not Path(source).is_file():
        raise ValueError(f"The file does not exist. Received: class_names={source!r}")
    return Path(source).read_text(encoding="utf-8").splitlines()
