"""Loads a dataset by name. `SOURCES` has all names except TFDS's, which follow "tfds:"."""

import collections
import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.arguments import did_you_mean
from keras_vit.data.datasets import DATASETS
from keras_vit.data.sources import arrays, captions, file_lists, folders, pairs, tfds, tfrecords
from keras_vit.data.sources.division import Division
from keras_vit.data.sources.source import Source
from keras_vit.data.sources.text_files import names_in
from keras_vit.data.targets.classes import check_splits
from keras_vit.files import is_dir

log = logging.getLogger(__name__)


def _with_options_of_row(source, name, path):
    """Returns a source with the options of its row of `DATASETS`; raises a `ValueError` if it has
    another number of classes."""
    row = DATASETS[name]
    if len(source.class_names) != row.classes:
        raise ValueError(
            f"{name} has {row.classes} classes. Received: {len(source.class_names)} in {path!r}"
        )
    return dataclasses.replace(source, options=row.options, empty_is_negative=False)


def _row_of_tfds(name, split, *, path="", class_names=""):
    """Loads a row of `DATASETS` from TFDS."""
    row = DATASETS[name]
    builder, label = row.tfds, row.label
    if split == "test" and row.test_tfds:
        builder, label = row.test_tfds, row.test_label
    class_names = names_in(class_names)
    if callable(label):
        class_names = class_names or tuple(map(str, range(row.classes)))
    stored_split = row.splits.get(split, split)
    source = tfds.tfds(builder, stored_split, path, row.image, label, class_names, row.scale)
    return _with_options_of_row(source, name, path)


def _row_of_folder(name, split, *, path="", class_names="", **division):
    """Loads a row of `DATASETS` from a folder."""
    stored_split = DATASETS[name].splits.get(split, split)
    source = folders.split_of_folder(stored_split, path=path, class_names=class_names, **division)
    return _with_options_of_row(source, name, path)


SOURCES: dict[str, Callable[..., Source]] = {
    "digits": arrays.split_of_digits,
    "folder": folders.split_of_folder,
    "images": folders.split_of_images,
    "list": file_lists.split_of_list,
    "tfrecords": tfrecords.split_of_tfrecords,
    "idx": arrays.split_of_idx,
    "tfds": tfds.split_of_tfds,
    "masks": pairs.split_of_masks,
    "depth": pairs.split_of_depth,
    "tfds_masks": pairs.split_of_tfds_masks,
    "captions": captions.split_of_captions,
    "caption_tfrecords": captions.split_of_caption_tfrecords,
    "caption_tfds": captions.split_of_caption_tfds,
    **{
        name: functools.partial(_row_of_tfds if row.tfds else _row_of_folder, name)
        for name, row in DATASETS.items()
    },
}
"""Maps the name of a dataset to a function that loads a split of it.

The function is called as `function(split, **fields)`. If it has a second positional argument,
datasets are named "NAME:REST", and it is called as `function(split, rest, **fields)`. Its keyword
arguments are the fields of `config.data` that it takes, with their defaults; `**division` stands
for the fields of `Division`. `fields` are those whose values differ from the config's defaults. A
function without a field `path` draws its images, or finds them on every machine.
"""


def fields_of(name: str) -> dict[str, Any]:
    """Returns the fields of `config.data` that the source of a dataset takes, with their defaults.

    Raises:
        ValueError: the name is unknown.
    """
    return _fields(_find(name)[0])


def loading_fields() -> dict[str, Any]:
    """Returns the fields of all sources with their defaults; the first source that has a field sets
    its default."""
    every: dict[str, Any] = {}
    for function in SOURCES.values():
        for name, value in _fields(function).items():
            if isinstance(value, bool | int | float | str | tuple):  # what a config can store
                every.setdefault(name, value)
    return every


def load(
    name: str, *, train_split: str = "train", test_split: str = "test", **fields: Any
) -> tuple[Source, Source]:
    """Loads the training and the test source of a dataset; `fields` are those of `load_split`.

    Raises:
        ValueError: as in `load_split`; also if the splits have different classes, a class has no
            training examples, or different splits have common examples.
    """
    train, test = load_pair(name, train_split, test_split, **fields)
    check_splits(train, test)
    return train, test


def load_pair(name, train_split, test_split, is_checked=True, **fields):
    """Loads two splits; if `is_checked`, refuses splits with common examples."""
    train = load_split(name, train_split, **fields)
    # Names that were found in the training split also apply to the test split.
    if train.finds_classes and not fields.get("class_names"):
        fields = {**fields, "class_names": train.class_names}
    if test_split != train_split:
        fields = {**fields, "num_examples": 0}  # it counts the training examples
    test = load_split(name, test_split, **fields)
    if is_checked and train_split == test_split:
        log.warning(
            "the training and test splits are equal: train_split=test_split=%r", train_split
        )
    elif is_checked:
        _check_disjoint(train, test, f"train_split={train_split!r}, test_split={test_split!r}")
    return train, test


def _check_disjoint(train, test, splits):
    """Raises a `ValueError` if a stored example belongs to both sources; `splits` describes
    them."""
    ranges = collections.defaultdict(list)
    # Names are mostly paths, and two lists can spell the path of a file differently.
    for name, start, stop in test.stored():
        ranges[os.path.abspath(name)].append((start, stop))
    for name, start, stop in train.stored():
        if any(start < last and first < stop for first, last in ranges[os.path.abspath(name)]):
            raise ValueError(
                "The training and test splits must have no common examples, such as 'tune_train' "
                "and 'tune_val', which divide 'train'; or must be equal, to measure the training "
                f"accuracy. Received: {splits}, which share examples of {name!r}"
            )


def load_split(name: str, split: str, **fields: Any) -> Source:
    """Loads one split of a dataset.

    Args:
        name: a key of `SOURCES`: "folder", "list", "tfrecords", "idx", "digits", a key of
            `DATASETS` such as "cifar10", or your own. "tfds:NAME" is a classification dataset of
            TFDS.
        split: for TFDS, a split in its syntax, such as `train[:90%]`; for "list", the path of the
            list; for "tfrecords", a pattern of file names; for "digits" and "idx", a split or a
            class-balanced part of it, such as `train[:100]`; for "folder", see `folder`.
        **fields: the fields that the source takes, such as `path`; the table of all config fields
            describes them.

    Returns:
        A `Source`.

    Raises:
        ValueError: the name is unknown, a required field is missing, a field does not apply to this
            kind of dataset, or the source cannot be read.
    """
    function, rest = _find(name)
    defaults = loading_fields()
    changed = {
        field: value
        for field, value in fields.items()
        if field not in defaults or value != defaults[field]
    }
    taken = _fields(function)
    if unknown := [f"{field}={changed[field]!r}" for field in changed if field not in taken]:
        raise ValueError(
            f"{name!r} takes only the fields {', '.join(['name', 'split', *taken])}. Received: "
            f"{', '.join(unknown)}"
        )
    try:
        source = function(split, *rest, **changed)
    except tf.errors.OpError as error:  # a remote file, for example in a bucket without access
        raise ValueError(
            f"The data cannot be read ({error.message.splitlines()[0]}). Received: name={name!r}, "
            f"split={split!r}"
        ) from error
    if source.finds_classes and "class_names" not in taken:  # the names cannot be passed to it
        source = dataclasses.replace(source, finds_classes=False)
    return source


def dataset_names() -> list[str]:
    """Returns the names of all datasets. The last name, "tfds", stands for names such as
    "tfds:mnist"."""
    return sorted(SOURCES, key=lambda name: name == "tfds")


def name_and_path(text: str) -> tuple[str, str]:
    """Returns the fields `name` and `path` for a dataset's name, or for the path of a folder of
    images.

    A text that is no name of a dataset is a path if it starts with a dot, a slash or a tilde, or is
    a folder.
    """
    if text.partition(":")[0] not in SOURCES and (text[:1] in ("/", ".", "~") or is_dir(text)):
        return "folder", os.path.expanduser(text)
    return text, ""


def _find(name):
    """Returns the function for a name, and the positional arguments after the split: `(rest,)` or
    `()`."""
    kind, _, rest = name.partition(":")
    function = SOURCES.get(kind)
    takes_rest = function is not None and _takes_rest(function)
    if function is None or (rest and not takes_rest):
        known = dataset_names()
        raise ValueError(
            f"`name` must be one of {', '.join(known)}:NAME.{did_you_mean(name, known)} Received: "
            f"name={name!r}"
        )
    return function, (rest,) if takes_rest else ()


def _fields(function):
    """Returns the fields that a source takes, with their defaults."""
    parameters = inspect.signature(function).parameters
    fields = {p.name: p.default for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    return fields | vars(Division()) if "division" in parameters else fields


def _takes_rest(function):
    parameters = inspect.signature(function).parameters.values()
    return sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) == 2
