"""Loads a dataset by its name: a row of `datasets`, any other TFDS dataset, a folder, a list, or TFRecords."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.data.datasets import DATASETS
from keras_vit.data.sources import arrays, files, tfds, tfrecords
from keras_vit.data.sources.source import Source, check_splits, parse_split, subset

SOURCES: dict[str, Callable[..., Source]] = {}
"""Your own kinds of datasets: after `SOURCES[NAME] = function`, the dataset "NAME:LABEL" is `function(split, label,
**fields)`, with the arguments of `load_split` that differ from their defaults."""

_OF_RECORDS = ("label_offset", "num_examples", "image_dtype", "image_shape", "max_value")
# The arguments of `load_split` that each kind of dataset takes, besides its name and split.
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
    """Loads the training and the test source of a dataset; for the arguments see `load_split`.

    Raises:
        ValueError: as `load_split`; or the splits have different classes, or a class has no training examples.
    """
    train = load_split(name, train_split, **details)
    # The training split determines the classes of folders and lists.
    names = train.class_names if name in ("folder", "list") else None
    test = load_known_split(name, test_split, names, **details)
    check_splits(train, test)
    return train, test


def load_split(
    name: str,
    split: str,
    *,
    path: str = "",
    classes: int = 0,
    class_names: str = "",
    test_share: float = 0.1,
    split_seed: int = 0,
    image_key: str = "",
    label_key: str = "",
    label_offset: int = 0,
    num_examples: int = 0,
    image_dtype: str = "",
    image_shape: Sequence[int] = (),
    max_value: float = 0.0,
) -> Source:
    """Loads one split of a dataset.

    Args:
        name: "folder", "list", "tfrecords", "idx" (files like MNIST's), "tfds:NAME" for a classification dataset of
            TFDS, a key of `DATASETS` such as "cifar10", "digits" (scikit-learn's 1,797 handwritten digits), or a key of
            `SOURCES`.
        split: for TFDS, a split in its syntax, such as `train[:90%]`; for "list", the path of the list; for
            "tfrecords", a pattern of file names; for "folder", see `folder`.
        path: the folder of the images, records or IDX files; for TFDS, its data folder if it is not the default; for
            "list", the folder that relative file names start from.
        classes: number of classes, for "tfrecords".
        class_names: a text file with one class name per line, in order.
        test_share: for "folder" without split subfolders, the share of each class that is held out for testing.
        split_seed: for "folder" without split subfolders, the seed that selects the images held out.
        image_key: for "tfrecords" and TFDS, the feature with the image.
        label_key: for "tfrecords" and TFDS, the feature with the label.
        label_offset: for "tfrecords", the number subtracted from stored labels.
        num_examples: for "tfrecords", the expected number of records; 0 if unknown.
        image_dtype: for "tfrecords", the dtype of stored pixel values; "" for image files.
        image_shape: for "tfrecords" of pixel values, `(H, W, C)`.
        max_value: for "tfrecords" of pixel values, the value of white.

    Returns:
        A `Source`.

    Raises:
        ValueError: the name is unknown, a required argument is missing, an argument is set that has no effect on this
            kind of dataset, or the source cannot be read.
    """
    return load_known_split(names=None, **locals())


LOADING_DEFAULTS = {
    field: parameter.default
    for field, parameter in inspect.signature(load_split).parameters.items()
    if parameter.default is not inspect.Parameter.empty
}


def load_known_split(name, split, names, **details):
    """Does the work of `load_split`; `names` are the class names if they are known."""
    fields = {**LOADING_DEFAULTS, **details}
    kind = _kind_of(name)
    changed = {field: value for field, value in fields.items() if value != LOADING_DEFAULTS[field]}
    if kind in SOURCES:
        return SOURCES[kind](split, name.partition(":")[2], **changed)
    if set(changed) - set(_UNDERSTOOD[kind]):
        received = ", ".join(f"{field}={value!r}" for field, value in changed.items() if field not in _UNDERSTOOD[kind])
        raise ValueError(
            f"{name!r} takes only {', '.join(['name', 'split', *_UNDERSTOOD[kind]])}. Received: {received}"
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
        return subset(splits[split], arrays.first_of_each_class(splits[split].labels, count))
    if kind == "folder":
        return files.folder(path, split, names, fields["test_share"], fields["split_seed"])
    if kind == "tfds":
        keys = {field: fields[field] or field.removesuffix("_key") for field in ("image_key", "label_key")}
        return tfds.tfds(name.removeprefix("tfds:"), split, path, class_names=names, **keys)
    location = split if kind == "list" or not path else f"{path.rstrip('/')}/{split}"
    if split in ("train", "test") and not tf.io.gfile.glob(location):
        raise ValueError(
            "--config.data.train_split and --config.data.test_split must be the lists, as in train_split=train.csv, or "
            f"the TFRecords in `path`, as in train_split='train-*'. Received: {split}_split={split!r}, path={path!r}"
        )
    if kind == "list":
        # Integers are not indices into the names that come from the training list.
        return files.file_list(split, path, names, only_names=not fields["class_names"])
    if not (names or fields["classes"]):
        raise ValueError("TFRecords need `classes` or `class_names`. Received: classes=0, class_names=''")
    names = names or tuple(map(str, range(fields["classes"])))
    keys = fields["image_key"] or "image/encoded", fields["label_key"] or "image/class/label"
    return tfrecords.tfrecords(location, names, *keys, **{field: fields[field] for field in _OF_RECORDS})


def _kind_of(name):
    """Returns the key of `_UNDERSTOOD` for the name of a dataset."""
    if name in DATASETS:
        return "row" if DATASETS[name].tfds else "folder"
    kind, colon, _ = name.partition(":")
    if kind in SOURCES or (colon and kind == "tfds") or name in ("digits", "folder", "idx", "list", "tfrecords"):
        return kind
    raise ValueError(
        f"`name` must be one of {', '.join(['digits', *SOURCES, *DATASETS])}, or tfds:NAME, folder, list, tfrecords, "
        f"idx. Received: name={name!r}"
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
    return dataclasses.replace(source, options=row.options)
