"""Sources of the image files in a CSV or text file."""

import collections
import dataclasses
import functools
import os
import posixpath
import unicodedata
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.sources import tables
from keras_vit.data.sources.division import HASHED, Division
from keras_vit.data.sources.listing import csv_rows, file_source, names_in, text_of
from keras_vit.data.sources.source import (
    Source,
    check_labels,
    check_names,
    check_pattern,
    checksum_of,
)

_MAX_CLASSES = 1_000_000  # each class takes memory, and a larger label is probably a mistake


def file_list(
    path: str | os.PathLike,
    root: str = "",
    class_names: Sequence[str] | None = None,
    only_names: bool = False,
    file_column: str = "",
    label_column: str = "",
    label_separator: str = "",
    split: str = "",
    division: Division | None = None,
) -> Source:
    """Returns a source of the image files and labels in a list.

    A `.csv` or `.tsv` list has a header, or rows with an image file and a label. Any other list has
    lines with an image file and a label, separated by white space. The ending of a file may be
    missing, such as `.jpg`. Labels are class names, or integers from 0. If any of `class_names` is
    an integer, all labels are treated as names.

    Images may have any number of classes in a table whose label column holds names separated by
    `label_separator`, or which has no label column but columns of zeros and ones, named as the
    classes. An image without a class is a negative example of all classes.

    Args:
        path: path of the list, local or remote (`gs://`).
        root: folder to which relative file names refer; by default the folder of the list.
        class_names: class names, in order; by default the sorted labels, or the integers from 0 to
            the largest label.
        only_names: if True and `class_names` is set, all labels are treated as names.
        file_column, label_column: names of the columns of a table; "" for a column with a usual
            name, such as file and label, or else the only column that can be meant.
        label_separator: what separates the class names of an image, such as ";" or " "; "" if each
            image has one class.
        split: "" for all images, or the part of `division` to return.
        division: divides the list by a hash; its `groups` may also be a column of a table.

    Raises:
        ValueError: the list is empty or cannot be read, a line does not consist of a file and a
            label, a file is missing or has several labels, labels mix integers and names without
            `class_names`, a label is too large or not a class, or `class_names` contains
            duplicates.
    """
    path = str(path)
    root = (str(root) or posixpath.dirname(path) or ".").rstrip("/") or "/"
    files = tables.Files(root)
    columns: tuple[str, ...] = ()
    names = check_names(class_names or ())
    if tables.is_table(path):
        groups_column = "" if division is None else division.groups
        rows, columns = tables.read_table(
            path, files, file_column, label_column, label_separator, names, groups_column
        )
    elif file_column or label_column or label_separator:
        raise ValueError(
            "`file_column`, `label_column` and `label_separator` apply to lists that end in .csv "
            f"or .tsv. Received: {path!r}"
        )
    else:
        rows = rows_of(path)
    if columns or label_separator:
        words, labels, names = _rows_of_classes(path, rows, names or columns)
    else:
        words, labels, names = _classes(path, rows, names, only_names)
    paths = _paths_of(path, files, rows, words)
    if division is not None and split:
        groups = tables.values(path, division.groups, [line for line, _, _ in rows])
        inside = [name.removeprefix(f"{root}/") for name in paths]
        # Images with any number of classes are divided without regard to their classes.
        classes = words if labels.ndim == 1 else [""] * len(words)
        kept = division.indices(split, inside, classes, groups)
        paths = [paths[i] for i in kept]
        labels = labels[kept]
    source = file_source(paths, labels, names)
    return dataclasses.replace(source, checksum=lambda: checksum_of(paths, moves=True))


def _paths_of(path, files, rows, words):
    """Returns the path of the file of each row; `words` are the labels of the rows in the list
    `path`."""
    found = [files.find(name) for _, name, _ in rows]
    missing = [files.path(name) for (_, name, _), place in zip(rows, found) if place is None]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(rows)} files are missing. Received: {missing[:10]} in {path!r}"
        )
    paths = [str(place) for place in found]
    counts = collections.Counter(place for place, _ in set(zip(paths, words)))
    if twice := [place for place, count in counts.items() if count > 1]:
        raise ValueError(
            f"Each file must have one label. Received: several labels for {twice[:10]} in {path!r}"
        )
    return paths


def _classes(path, rows, names, only_names):
    """Returns `(words, labels (N,), class names)` of a list with one class per image."""
    words = [unicodedata.normalize("NFC", label) for _, _, label in rows]
    integers = [word.isdecimal() for word in words]
    is_padded = any(word.startswith("0") and len(word) > 1 for word in words)  # such as "007"
    if any(integers) and not all(integers) and not set(words) <= set(names):
        odd = integers.index(False)
        raise ValueError(
            "Labels must be all integers or all names, unless --config.data.class_names lists "
            f"them. Received: {words[odd]!r} in line {rows[odd][0]} of {path!r}"
        )
    if is_padded and all(integers) and len({*map(int, words)}) < len({*words}):
        raise ValueError(
            "Labels must have one form for each class. Received: some with and some without "
            f"leading zeros in {path!r}"
        )
    are_names = any(name.isdecimal() for name in names) or only_names if names else is_padded
    if all(integers) and not are_names:
        labels = np.array([min(int(word), _MAX_CLASSES) for word in words], np.int64)
        if labels.max() == _MAX_CLASSES:
            raise ValueError(f"Labels must be below {_MAX_CLASSES:,}. Received: path={path!r}")
        names = names or tuple(map(str, range(labels.max() + 1)))
        check_labels(labels, names)
    else:
        names = names or tuple(sorted(set(words)))
        unknown = sorted(set(words) - set(names))
        if unknown:
            raise ValueError(
                f"Labels must be among the {len(names)} classes. Received: {unknown[:10]} in "
                f"{path!r}"
            )
        label_of = {name: label for label, name in enumerate(names)}
        labels = np.array([label_of[word] for word in words], np.int64)
    return words, labels, names


def _rows_of_classes(path, rows, names):
    """Returns `(tuples of words, labels (N, classes), class names)` of a list with any number of
    classes per image."""
    normalize = functools.partial(unicodedata.normalize, "NFC")
    words = [tuple(map(normalize, found)) for _, _, found in rows]
    used = set().union(*words)
    names = tuple(map(normalize, names)) or tuple(sorted(used))
    unknown = sorted(used - set(names))
    if unknown or not names:
        raise ValueError(
            f"Labels must be among the {len(names)} classes. Received: {unknown[:10]} in {path!r}"
        )
    label_of = {name: label for label, name in enumerate(names)}
    labels = np.zeros([len(rows), len(names)], bool)
    for row, found in enumerate(words):
        labels[row, [label_of[word] for word in found]] = True
    return words, labels, names


def split_of_list(
    split,
    *,
    path="",
    class_names="",
    file_column="",
    label_column="",
    label_separator="",
    test_share=0.1,
    split_seed=0,
    groups="",
    fold="",
):
    """Loads a list of image files; `split` is its path, or a hash-based split of the list `path`.

    Args:
        path: folder to which relative file names refer; "" for the folder of the list; or the list
            itself, to divide it into "train" and "test".
        class_names: path of a text file with one class name per line, in order; "" for the sorted
            labels.
        file_column, label_column: columns of a CSV or TSV list with the files and the labels; ""
            for usual names such as file and label, or the only column that can be meant. Without a
            label column, all columns of zeros and ones are classes.
        label_separator: what separates the names in the label column if images have any number of
            classes, such as ";".
        test_share: if `path` is a list, the fraction of each class to hold out for testing.
        split_seed: if `path` is a list, the seed that selects the held-out images.
        groups: column of the list, such as `patient`, whose equal values are never divided; or
            regular expression with one group, such as `^([^_]+)_`, for file names.
        fold: "2/5" tests on the second of five folds instead of `test_share`.
    """
    division = Division(test_share, split_seed, groups, fold)
    is_divided = split in HASHED and is_list(path)
    if split in HASHED and path.endswith((".csv", ".tsv", ".txt")) and not is_divided:
        raise ValueError(
            f"`path` must be an existing list, or the folder of the files. Received: path={path!r}"
        )
    if not is_divided:
        division.check_unused(split, path)
        check_pattern(split, path, split)
    # If the names were found in the training list, integers in the test list are names, not
    # indices.
    return file_list(
        path if is_divided else split,
        "" if is_divided else path,
        names_in(class_names),
        only_names=not isinstance(class_names, str),
        file_column=file_column,
        label_column=label_column,
        label_separator=label_separator,
        split=split if is_divided else "",
        division=division,
    )


def is_list(path: str | os.PathLike) -> bool:
    """Returns whether a path is a list of files, and not a folder."""
    return bool(path) and tf.io.gfile.exists(str(path)) and not tf.io.gfile.isdir(str(path))


def rows_of(path):
    """Returns `[line number, file, label]` for each line of a list except its header and empty
    lines."""
    if path.endswith(".csv"):
        rows = [[line, *map(str.strip, cells)] for line, cells in csv_rows(path) if cells]
        if rows and rows[0][1].lower() in tables.HEADERS:
            rows = rows[1:]
    else:
        rows = [
            [number, *line.rsplit(maxsplit=1)]
            for number, line in enumerate(text_of(path).splitlines(), 1)
            if line.strip()
        ]
    if not rows:
        raise ValueError(f"The list is empty. Received: path={path!r}")
    for row in rows:
        if len(row) != 3 or not all(row):
            raise ValueError(
                f"Each line must have a file and a label. Received: {row[1:]!r} in line {row[0]} "
                f"of {path!r}"
            )
    return rows
