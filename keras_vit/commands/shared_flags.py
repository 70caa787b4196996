"""Defines flags that several commands share, and loads the models and data that they select."""

import sys

from absl import flags

import keras_vit
from keras_vit import checkpoints, data, evaluation, files, text
from keras_vit.arguments import did_you_mean
from keras_vit.data.loading import name_and_path
from keras_vit.data.sources.folders import has_no_splits
from keras_vit.data.sources.text_files import lines_of
from keras_vit.evaluation.loading import load_run_inputs, splits_to_read
from keras_vit.models import TwoTowers
from keras_vit.models.zero_shot import class_names_of
from keras_vit.training.stored_models import is_stored, load_any_model

FLAGS = flags.FLAGS
MODELS = "the workdir of a run, the folder of an export or its versions, or a .keras file"


def define_model():
    default = text.TEMPLATES[0]
    flags.DEFINE_string("model", "", f"{MODELS.capitalize()}.")
    flags.DEFINE_string("variant", "", "Constructor to use instead of --model, such as ViT_B16.")
    flags.DEFINE_string(
        "weights",
        "",
        "Published weights, a path or a URL; without --variant, they determine the model.",
    )
    flags.DEFINE_string(
        "text_embeddings",
        "",
        "An .npz file with text embeddings of the classes, for CLIP or SigLIP.",
    )
    flags.DEFINE_string(
        "classes",
        "",
        "Class names for CLIP or SigLIP, separated by commas, or a text file with one per line.",
    )
    flags.DEFINE_string(
        "templates",
        default,
        "Text with {} in place of the class name; 'clip' for CLIP's 80 templates; or a text file "
        "with one per line.",
    )
    flags.DEFINE_string(
        "tokenizer",
        "",
        "Path or repository of the tokenizer for --classes; by default, next to --weights.",
    )
    flags.register_multi_flags_validator(
        ["classes", "templates", "tokenizer"],
        lambda given: given["classes"] or (given["templates"], given["tokenizer"]) == (default, ""),
        "--templates and --tokenizer need --classes",
    )
    flags.register_multi_flags_validator(
        ["classes", "text_embeddings"],
        lambda given: not (given["classes"] and given["text_embeddings"]),
        "Pass --classes or --text_embeddings, not both",
    )


def define_class_names():
    flags.DEFINE_string(
        "class_names",
        "",
        "Text file with one class name per line, or 'published' for ImageNet names.",
    )


def define_data():
    flags.DEFINE_string(
        "data", "", "Dataset, such as digits or tfds:NAME, or folder; by default, the run's data."
    )
    flags.DEFINE_string("data_path", "", "Folder of the dataset, if it is not the default folder.")


def load_data(model, details, splits=("train", "test"), max_bad_share=0.01):
    """Returns `(inputs, title, note)` for the dataset of `--data` or the run, or `(None, "", "")`
    if neither is known. `note` says which images of a folder are read, or is "".

    If `--data` is a folder, it must contain one subfolder per class, or one subfolder per split,
    each of which contains one subfolder per class. If `splits` is only "test", all images of a
    folder without splits are read, unless it is the folder of the run, whose training images are
    left out.
    """
    name = FLAGS.data
    path = FLAGS.data_path
    if not path:
        name, path = name_and_path(name)
    check_data_name(name)
    config = run_data(details)
    note = ""
    if name == "folder" and has_no_splits(path):
        splits = splits_to_read(path, splits, config)
        note = " (held-out images; the others are for training)"
        if splits == ("",):
            note = " (all images)"
    if name:
        inputs = evaluation.load_inputs(
            model,
            name,
            path,
            splits,
            max_bad_share=max_bad_share,
            class_names=details.get("class_names") or (),
            run=config,
        )
    elif config:
        name = config.get("name", "digits")
        path = path or config.get("path", "")
        config = {**config, "path": path, "max_bad_share": max_bad_share}
        try:
            inputs = load_run_inputs(model, config)
        except ValueError as error:
            raise ValueError(
                "The data of the run cannot be loaded; set --data, or --data_path if it has "
                f"moved. {error}"
            ) from error
    else:
        return None, "", ""
    return inputs, f"{name} {path}".strip(), note


def run_data(details):
    """Returns the `data` fields of the config that a model was trained with; {} if it is
    unknown."""
    return details.get("recipe", {}).get("data", {})


def check_data_name(name):
    """Raises a `ValueError` unless `name` is empty or names a dataset, such as "cifar10" or
    "tfds:mnist"."""
    known = data.dataset_names()
    if name and name.partition(":")[0] not in known:
        advice = did_you_mean(name, known) or f" The datasets are {', '.join(known)}:NAME."
        raise ValueError(
            "No such folder or dataset exists. --data takes a folder with subfolders for classes, "
            f"or the name of a dataset.{advice} Received: data={name!r}"
        )


def chosen_model(takes_towers=False):
    """Loads the model that the flags select; unless `takes_towers`, it takes only images.

    Returns:
        `(model, details, title)`; `details` is a dict of arguments for `export.saved_model`.
    """
    tower = "both" if FLAGS.classes else "image"
    model, details = _load_chosen(FLAGS.model, FLAGS.variant, FLAGS.weights, tower)
    names = checkpoints.find_class_names(FLAGS.weights) if FLAGS.weights else None
    if names and len(names) == model.output_shape[-1]:
        details = {"class_names": names}
    if FLAGS.text_embeddings:
        model = keras_vit.zero_shot(model, FLAGS.text_embeddings)
    if FLAGS.classes:
        model = classifier_of_words(model)
    if FLAGS.text_embeddings or FLAGS.classes:
        details = {"class_names": class_names_of(model)}
    if isinstance(model, TwoTowers) and not takes_towers:
        raise ValueError(
            "The model has an image and a text tower; --classes=cat,dog makes a classifier of it. "
            f"Received: model={FLAGS.model!r}"
        )
    title = FLAGS.model or FLAGS.weights
    if FLAGS.variant:
        title = f"{FLAGS.variant} with {FLAGS.weights or 'random'} weights"
    return model, details, title


def _load_chosen(source, variant, weights, tower):
    """Returns `(model, details)` for the values of `--model`, `--variant` and `--weights`; `tower`
    applies to weights alone."""
    if bool(source) == bool(variant or weights):
        raise ValueError(
            "Pass either --model, or at least one of --variant and --weights. "
            f"Received: model={source!r}, variant={variant!r}, weights={weights!r}"
        )
    if weights.endswith(".keras"):
        raise ValueError(
            "--weights must not be a .keras file; pass it as --model. Received: "
            f"weights={weights!r}"
        )
    if source:
        return load_model(source)
    if not variant:
        return keras_vit.from_pretrained(weights, tower=tower), {}
    known = keras_vit.families.CONSTRUCTORS
    if variant not in known:
        near = did_you_mean(variant, known) or f" The constructors are {', '.join(known)}."
        raise ValueError(
            f"--variant must be a constructor of keras_vit.{near} Received: variant={variant!r}"
        )
    return getattr(keras_vit, variant)(weights=weights or None), {}


def classifier_of_words(model):
    """Builds the zero-shot classifier of `--classes` from a model with both towers."""
    is_file = FLAGS.classes.endswith(".txt") or files.exists(FLAGS.classes)
    names = _lines_of("classes", FLAGS.classes) if is_file else FLAGS.classes.split(",")
    if FLAGS.templates == "clip":
        templates = text.CLIP_TEMPLATES
    elif "{}" in FLAGS.templates:
        templates = [FLAGS.templates]
    else:
        templates = _lines_of("templates", FLAGS.templates)
    names = [name.strip() for name in names]
    return keras_vit.zero_shot(model, names, templates, FLAGS.tokenizer or None)


def _lines_of(flag, path):
    """Returns the lines of the text file that a flag names."""
    if not files.exists(path):
        raise ValueError(f"The file does not exist. Received: {flag}={path!r}")
    return lines_of(path)


def load_model(source):
    """Returns `(model, details)`; `details` is a dict of arguments for `export.saved_model`.

    `source` is a run's workdir, the folder of an export or of its versions, or a .keras file, local
    or remote. If a folder contains several versions, the newest is loaded. A run without an export,
    or an unfinished run with a checkpoint, is loaded as `training.load_checkpoint` describes.
    """
    with files.explained_errors(
        "The model cannot be read", f"--model takes {MODELS}.", f"model={source!r}"
    ):
        if not files.exists(source):
            raise ValueError(
                f"The file or folder does not exist. --model takes {MODELS}; --weights takes "
                f"weights, and --variant takes a constructor. Received: model={source!r}"
            )
        if not is_stored(source):
            raise ValueError(
                f"--model takes {MODELS}; --weights takes weights. Received: model={source!r}"
            )
        return load_any_model(source, write=lambda line: print(line, file=sys.stderr))


def with_class_names(details, source, model):
    """Returns the details of a model with the class names that `--class_names` selects, unless it
    is ""."""
    if not source:
        return details
    return {**details, "class_names": read_class_names(source, model.output_shape[-1])}


def read_class_names(source, classes):
    """Returns the lines of the file `source`. For "published", returns names for 1,000 or 21,843
    classes."""
    if source == "published":
        return keras_vit.predictions.class_names(classes)
    return _lines_of("class_names", source)
