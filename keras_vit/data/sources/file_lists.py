"""Sources of the image files in a CSV or text file."""

import collections
import dataclasses
import os
import posixpath
import unicodedata
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.sources import tables
from keras_vit.data.sources.division import HASHED, Division
from keras_vit.data.sources.listing import file_source
from keras_vit.data.sources.source import (
    Source,
    check_labels,
    check_names,
    check_pattern,
    checksum_of,
)
from keras_vit.data.sources.text_files import names_in, text_of

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
    division = division or Division()
    names = check_names(class_names or ())
    if tables.is_table(path):
        rows, columns = tables.read_table(
            path, files, file_column, label_column, label_separator, names, division.groups
        )
    elif file_column or label_column or label_separator:
        raise ValueError(
            "`file_column`, `label_column` and `label_separator` apply to lists that end in .csv "
            f"or .tsv. Received: {path!r}"
        )
    else:
        rows = _rows_of_text(path)
        columns = ()
    rows = [row._replace(label=_normalized(row.label)) for row in rows]
    paths = _paths_of(path, files, rows)
    if columns or label_separator:
        labels, names = _several_classes(path, rows, names or columns)
        strata = [""] * len(rows)  # such images are divided without regard to their classes
    else:
        labels, names = _one_class(path, rows, names, only_names)
        strata = [str(row.label) for row in rows]
    if split:
        inside = [name.removeprefix(f"{root}/") for name in paths]
        groups = [row.group for row in rows if row.group]
        kept = division.indices(split, inside, strata, groups)
        paths = [paths[i] for i in kept]
        labels = labels[kept]
    source = file_source(paths, labels, names)
    return dataclasses.replace(source, checksum=lambda: checksum_of(paths, moves=True))


def _rows_of_text(path):
    """Returns the rows of a list whose lines have a file and a label, separated by white space."""
    lines = [line.rsplit(maxsplit=1) for line in text_of(path).splitlines()]
    if wrong := [number for number, line in enumerate(lines, 1) if len(line) == 1]:
        raise ValueError(
            f"Each line must have a file and a label. Received: line {wrong[0]} of {path!r}"
        )
    if not any(lines):
        raise ValueError(f"The list is empty. Received: path={path!r}")
    return [tables.Row(number, *line) for number, line in enumerate(lines, 1) if line]


def _normalized(label):
    """Returns a label, or a tuple of labels, in NFC like the names of classes."""
    if isinstance(label, tuple):
        return tuple(map(_normalized, label))
    return unicodedata.normalize("NFC", label)


def _paths_of(path, files, rows):
    """Returns the path of the file of each row of the list `path`."""
    paths = [files.find(row.file) or "" for row in rows]
    if missing := [files.path(row.file) for row, found in zip(rows, paths) if not found]:
        raise ValueError(
            f"{len(missing)} of {len(rows)} files are missing. Received: {missing[:10]} in {path!r}"
        )
    labels = {(file, row.label) for file, row in zip(paths, rows)}
    counts = collections.Counter(file for file, _ in labels)
    if twice := [file for file, count in counts.items() if count > 1]:
        raise ValueError(
            f"Each file must have one label. Received: several labels for {twice[:10]} in {path!r}"
        )
    return paths


def _one_class(path, rows, names, only_names):
    """Returns `(labels (N,), class names)` of a list with one class per image."""
    texts = [row.label for row in rows]
    distinct = set(texts)
    named = next((row for row in rows if not row.label.isdecimal()), None)
    if named and any(map(str.isdecimal, texts)) and not distinct <= set(names):
        raise ValueError(
            "Labels must be all integers or all names, unless --config.data.class_names lists "
            f"them. Received: {named.label!r} in line {named.line} of {path!r}"
        )
    numbers = [] if named else [*map(int, texts)]
    if numbers and len(set(numbers)) < len(distinct):
        raise ValueError(
            "Labels must have one form for each class. Received: some with and some without "
            f"leading zeros in {path!r}"
        )
    if names:
        are_names = only_names or any(map(str.isdecimal, names))
    else:
        are_names = any(text.startswith("0") and len(text) > 1 for text in texts)  # such as "007"
    if named or are_names:
        names = names or tuple(sorted(distinct))
        number_of = _numbers(path, distinct, names)
        return np.array([number_of[text] for text in texts], np.int64), names
    if max(numbers) >= _MAX_CLASSES:
        raise ValueError(f"Labels must be below {_MAX_CLASSES:,}. Received: path={path!r}")
    labels = np.array(numbers, np.int64)
    names = names or tuple(map(str, range(max(numbers) + 1)))
    check_labels(labels, names)
    return labels, names


def _several_classes(path, rows, names):
    """Returns `(labels (N, classes), class names)` of a list with any number of classes per
    image."""
    distinct = {name for row in rows for name in row.label}
    names = names or tuple(sorted(distinct))
    number_of = _numbers(path, distinct, names)
    labels = np.zeros([len(rows), len(names)], bool)
    for flags, row in zip(labels, rows):
        flags[[number_of[name] for name in row.label]] = True
    return labels, names


def _numbers(path, labels, names):
    """Returns `{name: number}` for the classes; raises a `ValueError` if a label is no class."""
    unknown = sorted(labels - set(names))
    if unknown or not names:
        raise ValueError(
            f"Labels must be among the {len(names)} classes. Received: {unknown[:10]} in {path!r}"
        )
    return {name: number for number, name in enumerate(names)}


def split_of_list(
    split,
    *,
    path="",
    class_names="",
    file_column="",
    label_column="",
    label_separator="",
    **division,
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
        **division: fields of `Division`.
    """
    is_divided = split in HASHED and is_list(path)
    fields = Division(**division)
    if not is_divided:
        fields.check_unused(split, path)
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
        division=fields,
    )


def is_list(path: str | os.PathLike) -> bool:
    """Returns whether a path is a list of files, and not a folder."""
    return bool(path) and tf.io.gfile.exists(str(path)) and not tf.io.gfile.isdir(str(path))
