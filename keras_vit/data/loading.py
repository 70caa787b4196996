"""Loading a dataset by its name: a row of `datasets`, any other dataset of TFDS, a folder, a list, or TFRecords."""

import dataclasses
import inspect
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_vit import files as file_system
from keras_vit.data.datasets import DATASETS
from keras_vit.data.sources import (
    Source,
    check_splits,
    digits,
    file_list,
    first_of_each_class,
    folder,
    listed_once,
    read_text_file,
    shapes,
    subset,
    tfds,
    tfrecords,
)
from keras_vit.data.sources.source import warn_of_empty_classes

# Which arguments of `load_split` each kind of dataset understands, besides its name and split.
_UNDERSTOOD = {
    "digits": (),
    "shapes": ("num_examples", "image_shape", "split_seed"),
    "folder": ("path", "class_names", "test_share", "split_seed"),
    "list": ("path", "class_names"),
    "tfrecords": (
        *("path", "classes", "class_names", "image_key", "label_key", "label_offset"),
        *("num_examples", "image_dtype", "image_shape", "max_value"),
    ),
    "tfds": ("path", "class_names", "image_key", "label_key"),
    "row": ("path", "class_names"),
}


@listed_once()
def load(name: str, *, train_split: str = "train", test_split: str = "test", **details: Any) -> tuple[Source, Source]:
    """The train and the test source of a dataset.

    Args:
        name: see `load_split`.
        train_split, test_split: see `load_split`.
        **details: the other arguments of `load_split`.

    Raises:
        ValueError: as `load_split`; or the two splits have different classes, or a class no examples.
    """
    train = load_split(name, train_split, **details)
    # Both lists, or both subfolders, have the classes of the first one.
    names = train.class_names if name in ("folder", "list") else None
    test = _load_split(name, test_split, names, **details)
    check_splits(train, test)
    for split, source in ((train_split, train), (test_split, test)):
        warn_of_empty_classes(source, f"{name} {split}")
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
    """One split of a dataset.

    Args:
        name: "digits", the 1,797 handwritten digits (8x8 pixels of 0 to 16) of scikit-learn;
            "shapes:LABEL", images that are drawn when they are read, by one of their factors or "shape"; a row of
            `DATASETS`; "tfds:NAME" for any other classification dataset of TFDS; "folder", "list" or "tfrecords".
        split: of a row or of "tfds:", a split of `DATASETS` or in TFDS's words, `train[:90%]`; of "folder", see
            there; of "shapes", see there; of "list", the list; of "tfrecords", the pattern of the files' names.
        path: of TFDS, its data folder, unless it is in the usual place; of "folder" and the rows that are folders,
            the folder; of "list", where relative names start; of "tfrecords", the folder of the files.
        classes: of "tfrecords", how many.
        class_names: a text file with the name of each class, in order, one a line.
        test_share, split_seed: see `folder`. Of "shapes" the seed of all images.
        image_key, label_key, label_offset, num_examples, image_dtype, image_shape, max_value: see `tfrecords`; the
            keys of "tfds:" too. Of "shapes" the number of training examples, and `(H, W, C)`.

    Returns:
        A `Source`.

    Raises:
        ValueError: the name is not known, something that it needs is missing, something is set that it does not
            understand, or what the source itself refuses.
    """
    details = dict(locals())
    return _load_split(details.pop("name"), details.pop("split"), None, **details)


def _load_split(name, split, names, **details):
    """As `load_split`, with the names of the classes if they are known."""
    fields = {**LOADING_DEFAULTS, **details}
    _check_understood(name, fields)
    if fields["class_names"]:
        names = _lines(fields["class_names"])
    path = fields["path"]
    if name == "digits":
        return _digits(split)
    if name.split(":")[0] == "shapes":
        label = name.partition(":")[2] or "shape"
        return shapes(split, label, fields["num_examples"], fields["image_shape"], fields["split_seed"])
    if name == "folder":
        return folder(path, split, names, fields["test_share"], fields["split_seed"])
    if name == "list":
        if split in ("train", "test") and not file_system.exists(split):
            raise ValueError(
                "The lists are named by --config.data.train_split and --config.data.test_split, as in "
                f"train_split=train.csv, and `path` is where their files are. Received: {split}_split={split!r}"
            )
        return file_list(split, path, names)
    if name == "tfrecords":
        return _tfrecords(split, names, **{field: fields[field] for field in _UNDERSTOOD[name]})
    if name.startswith("tfds:"):
        keys = {field: fields[field] or field.removesuffix("_key") for field in ("image_key", "label_key")}
        return tfds(name.removeprefix("tfds:"), split, path, class_names=names, **keys)
    if name not in DATASETS:
        raise ValueError(
            f"The datasets known by name are: digits, shapes, {', '.join(DATASETS)}; shapes:LABEL, tfds:NAME, folder, "
            "list, tfrecords. "
            f"Received: name={name!r}"
        )
    return _row(name, split, path, names, fields["test_share"], fields["split_seed"])


LOADING_DEFAULTS = {
    field: parameter.default
    for field, parameter in inspect.signature(load_split).parameters.items()
    if parameter.default is not inspect.Parameter.empty
}


def _tfrecords(split, names, path, classes, class_names, image_key, label_key, **details):
    if not (names or classes):
        raise ValueError("TFRecords need `classes` or `class_names`. Received: classes=0, class_names=''")
    pattern = f"{path.rstrip('/')}/{split}" if path else split
    if split in ("train", "test") and not tf.io.gfile.glob(pattern):
        raise ValueError(
            "The files are named by --config.data.train_split and --config.data.test_split, patterns such as "
            f"'train-*', in the folder `path`. Received: {split}_split={split!r}, path={path!r}"
        )
    keys = {"image_key": image_key or "image/encoded", "label_key": label_key or "image/class/label"}
    return tfrecords(pattern, names or tuple(map(str, range(classes))), **keys, **details)


def _check_understood(name, arguments):
    """Refuses what would have no effect on a dataset, except at its default."""
    kind = name.split(":")[0]
    if kind in DATASETS:
        kind = "row" if DATASETS[kind].tfds else "folder"
    if kind not in _UNDERSTOOD:
        return
    understood = _UNDERSTOOD[kind]
    unused = {field: value for field, value in arguments.items() if value != LOADING_DEFAULTS[field]}
    unused = {field: unused[field] for field in sorted(unused.keys() - set(understood))}
    if unused:
        received = ", ".join(f"{field}={value!r}" for field, value in unused.items())
        raise ValueError(
            f"The dataset {name!r} is found by {', '.join(['name', 'split', *understood])} alone. Received: {received}"
        )


def _row(name, split, path, class_names, test_share, split_seed):
    row = DATASETS[name]
    words = row.splits.get(split, split)
    if not row.tfds:
        source = folder(path, words, class_names, test_share, split_seed)
    else:
        other = row.test_tfds if split == "test" else ""
        label = row.test_label if other else row.label
        source = tfds(
            other or row.tfds,
            words,
            path,
            row.image,
            **({"label": label} if callable(label) else {"label_key": label}),
            class_names=class_names or (tuple(map(str, range(row.classes))) if callable(label) else None),
            scale=row.scale,
        )
    if len(source.class_names) != row.classes:
        raise ValueError(f"{name} has {row.classes} classes. Received: {len(source.class_names)} in {path!r}")
    return dataclasses.replace(source, options=row.options)


def _digits(split):
    sources = digits()
    match = re.fullmatch(r"(\w+)(?:\[:(\d+)\])?", split)
    if not match or match[1] not in sources:
        raise ValueError(
            f"The splits of the digits are {', '.join(sources)}, or the first ones of a split, train[:100]. "
            f"Received: split={split!r}"
        )
    source = sources[match[1]]
    if match[2] is None:
        return source
    if not 0 < int(match[2]) <= source.num_examples:
        raise ValueError(f"The split {match[1]!r} has {source.num_examples} examples. Received: split={split!r}")
    return subset(source, first_of_each_class(source.labels, int(match[2])))


def _lines(path):
    return tuple(line.strip() for line in read_text_file(path).splitlines() if line.strip())
