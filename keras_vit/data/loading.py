"""Loads a dataset by name; `load_split` lists the names."""

import dataclasses
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.data.datasets import DATASETS
from keras_vit.data.sources import arrays, files, tfds, tfrecords
from keras_vit.data.sources.source import Source, check_disjoint, check_splits, parse_split, subset
from keras_vit.files import did_you_mean, is_dir

log = logging.getLogger(__name__)

SOURCES: dict[str, Callable[..., Source]] = {}
"""User-defined kinds of datasets. After `SOURCES[NAME] = function`, the dataset "NAME:REST" is loaded by
`function(split, rest, **fields)`, where `fields` are the arguments of `load_split` that differ from their defaults."""

_OF_RECORDS = ("label_offset", "num_examples", "image_dtype", "image_shape", "max_value")
# The arguments of `load_split` that each kind of dataset takes, in addition to `name` and `split`. "row" stands for the
# keys of `DATASETS` that are loaded from TFDS.
_UNDERSTOOD = {
    "digits": (),
    "idx": ("path", "class_names"),
    "folder": ("path", "class_names", "test_share", "split_seed"),
    "list": ("path", "class_names"),
    "tfds": ("path", "class_names", "image_key", "label_key"),
    "row": ("path", "class_names"),
    "tfrecords": ("path", "class_names", "image_key", "label_key", "classes", *_OF_RECORDS),
}


def load(name: str, *, train_split: str = "train", test_split: str = "test", **details: Any) -> tuple[Source, Source]:
    """Loads the training and the test source of a dataset; `details` are further arguments of `load_split`.

    Raises:
        ValueError: as in `load_split`; also if the splits have different classes, a class has no training examples, or
            different splits have common examples.
    """
    train = load_split(name, train_split, **details)
    # For folders and lists, the classes of the training split also apply to the test split.
    names = train.class_names if name in ("folder", "list") else None
    test = load_known_split(name, test_split, names, **details)
    check_splits(train, test)
    if train_split == test_split:
        log.warning("the training and test splits are equal: train_split=test_split=%r", train_split)
    else:
        check_disjoint(train, test, f"train_split={train_split!r}, test_split={test_split!r}")
    return train, test


def load_split(
    name: str, split: str, *, path: str = "", classes: int = 0, class_names: str = "", test_share: float = 0.1,
    split_seed: int = 0, image_key: str = "", label_key: str = "", label_offset: int = 0, num_examples: int = 0,
    image_dtype: str = "", image_shape: Sequence[int] = (), max_value: float = 0.0,
) -> Source:  # fmt: skip
    """Loads one split of a dataset.

    Args:
        name: "folder", "list", "tfrecords", "idx" (IDX files, as for MNIST), "digits" (scikit-learn's 1,797 handwritten
            digits), "tfds:NAME" for a classification dataset of TFDS, a key of `DATASETS` such as "cifar10", or a key
            of `SOURCES`, optionally followed by a colon and more text.
        split: for TFDS, a split in its syntax, such as `train[:90%]`; for "list", the path of the list; for
            "tfrecords", a pattern of file names; for "digits" and "idx", a split or a class-balanced part of it, such
            as `train[:100]`; for "folder", see `folder`.
        path: folder of the images, TFRecords or IDX files; for TFDS, the data folder, "" for the default; for "list",
            the folder to which relative file names refer.
        classes: number of classes, for "tfrecords".
        class_names: path of a text file with one class name per line, in order.
        test_share: for "folder" without split subfolders, the fraction of each class to hold out for testing.
        split_seed: for "folder" without split subfolders, the seed that selects the held-out images.
        image_key: for "tfrecords" and TFDS, the name of the image feature.
        label_key: for "tfrecords" and TFDS, the name of the label feature.
        label_offset: for "tfrecords", the number to subtract from stored labels.
        num_examples: for "tfrecords", the expected number of records; 0 if unknown.
        image_dtype: for "tfrecords", the dtype of raw pixel values; "" for encoded images.
        image_shape: for "tfrecords" with raw pixel values, `(H, W, C)`.
        max_value: for "tfrecords" with raw pixel values, the value of a white pixel.

    Returns:
        A `Source`.

    Raises:
        ValueError: the name is unknown, a required argument is missing, an argument does not apply to this kind of
            dataset, or the source cannot be read.
    """
    return load_known_split(names=None, **locals())


LOADING_DEFAULTS = {
    field: parameter.default
    for field, parameter in inspect.signature(load_split).parameters.items()
    if parameter.default is not inspect.Parameter.empty
}


def load_known_split(name, split, names, **details):
    """Implements `load_split`; `names` are the class names, or None if they are unknown."""
    fields = {**LOADING_DEFAULTS, **details}
    kind = _kind_of(name)
    changed = {field: value for field, value in fields.items() if value != LOADING_DEFAULTS[field]}
    if kind in SOURCES:
        return SOURCES[kind](split, name.partition(":")[2], **changed)
    if set(changed) - set(_UNDERSTOOD[kind]):
        received = ", ".join(f"{field}={value!r}" for field, value in changed.items() if field not in _UNDERSTOOD[kind])
        raise ValueError(
            f"{name!r} takes only the fields {', '.join(['name', 'split', *_UNDERSTOOD[kind]])}. Received: {received}"
        )
    if fields["class_names"]:
        lines = files.read_text_file(fields["class_names"]).splitlines()
        names = tuple(line.strip() for line in lines if line.strip())
    path = fields["path"]
    if name in DATASETS:
        return _row(name, split, names, fields)
    if kind in ("digits", "idx"):
        splits = arrays.digits() if kind == "digits" else arrays.idx(path, names)
        split, count = parse_split(kind, split, {part: of.num_examples for part, of in splits.items()})
        source = subset(splits[split], arrays.first_of_each_class(splits[split].labels, count))
        parts = ("tune_train", "tune_val") if split == "train" else (split,)
        return dataclasses.replace(source, stored=lambda: [(part, 0, 1) for part in parts])
    if kind == "folder":
        return files.folder(path, split, names, fields["test_share"], fields["split_seed"])
    if kind == "tfds":
        keys = {field: fields[field] or field.removesuffix("_key") for field in ("image_key", "label_key")}
        return tfds.tfds(name.removeprefix("tfds:"), split, path, class_names=names, **keys)
    location = split if kind == "list" or not path else f"{path.rstrip('/')}/{split}"
    if split in ("train", "test") and not tf.io.gfile.glob(location):
        raise ValueError(
            "--config.data.train_split and --config.data.test_split must be lists of files, as in train_split=train.csv"
            ", or TFRecords in `path`, as in train_split='train-*'. "
            f"Received: {split}_split={split!r}, path={path!r}"
        )
    if kind == "list":
        # If the names come from the training list, integers in the test list are names, not indices.
        return files.file_list(split, path, names, only_names=not fields["class_names"])
    if not (names or fields["classes"]):
        raise ValueError("`classes` or `class_names` must be set for TFRecords. Received: classes=0, class_names=''")
    names = names or tuple(map(str, range(fields["classes"])))
    if fields["classes"] not in (0, len(names)):
        raise ValueError(
            "`classes` must be 0 or the number of names in `class_names`. "
            f"Received: classes={fields['classes']}, {len(names)} names in class_names={fields['class_names']!r}"
        )
    keys = fields["image_key"] or "image/encoded", fields["label_key"] or "image/class/label"
    return tfrecords.tfrecords(location, names, *keys, **{field: fields[field] for field in _OF_RECORDS})


def dataset_names() -> list[str]:
    """Returns the names of all datasets. The last name, "tfds", stands for names such as "tfds:mnist"."""
    return ["digits", *SOURCES, *DATASETS, "folder", "list", "tfrecords", "idx", "tfds"]


def name_and_path(text: str) -> tuple[str, str]:
    """Returns the fields `name` and `path` for a dataset's name, or for the path of a folder of images.

    A text that is no name of a dataset is a path if it starts with a dot, a slash or a tilde, or is a folder.
    """
    if text.partition(":")[0] not in dataset_names() and (text[:1] in ("/", ".", "~") or is_dir(text)):
        return "folder", os.path.expanduser(text)
    return text, ""


def _kind_of(name):
    """Returns the key of `_UNDERSTOOD` or `SOURCES` for the name of a dataset."""
    if name in DATASETS:
        return "row" if DATASETS[name].tfds else "folder"
    kind, colon, _ = name.partition(":")
    if kind in SOURCES or (colon and kind == "tfds") or name in ("digits", "folder", "idx", "list", "tfrecords"):
        return kind
    known = dataset_names()
    raise ValueError(
        f"`name` must be one of {', '.join(known)}:NAME.{did_you_mean(name, known)} Received: name={name!r}"
    )


def _row(name, split, class_names, fields):
    row, path = DATASETS[name], fields["path"]
    words = row.splits.get(split, split)
    if not row.tfds:
        source = files.folder(path, words, class_names, fields["test_share"], fields["split_seed"])
    else:
        other = row.test_tfds if split == "test" else ""
        label = row.test_label if other else row.label
        if callable(label):
            class_names = class_names or tuple(map(str, range(row.classes)))
        source = tfds.tfds(other or row.tfds, words, path, row.image, label, class_names, row.scale)
    if len(source.class_names) != row.classes:
        raise ValueError(f"{name} has {row.classes} classes. Received: {len(source.class_names)} in {path!r}")
    return dataclasses.replace(source, options=row.options, empty_is_negative=False)
