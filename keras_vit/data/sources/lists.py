"""Lists of image files and their labels, as CSV or text."""

import csv
import os
import posixpath
import unicodedata
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.files import entries_of, file_source
from keras_vit.data.sources.source import Source, check_labels, check_names

HEADERS = {"file", "filename", "file_name", "path", "filepath", "image", "image_path"}
_MOST_CLASSES = 1_000_000  # a larger label is a mistake, and every class takes memory
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def file_list(path: str | os.PathLike, root: str = "", class_names: Sequence[str] | None = None) -> Source:
    """A source of the image files that a list names, each with its label.

    A `.csv` has one file and one label a row, with or without a header; any other file has them on a line, with
    white space between. Labels are names of classes, or integers from 0; where one of `class_names` is an integer,
    all labels are names.

    Args:
        path: the list; local or `gs://`.
        root: the folder that relative names start from; by default the folder of the list.
        class_names: the classes, in order; otherwise the labels, sorted, or the integers up to the largest.

    Raises:
        ValueError: the list is empty, a line is not a file and a label, a file is missing or has two labels, or a
            label is not a class.
    """
    path = str(path)
    rows = _rows(path)
    root = (str(root) or posixpath.dirname(path)).rstrip("/")
    words = [unicodedata.normalize("NFC", label) for _, _, label in rows]
    names = check_names(class_names or ())
    _check_words(words, rows, names, path)
    numbered = names == tuple(map(str, range(len(names))))
    if words[0].isdecimal() and (numbered or not any(name.isdecimal() for name in names)):
        numbers = [int(word) for word in words]
        if max(numbers) >= _MOST_CLASSES:
            raise ValueError(f"Labels must be below {_MOST_CLASSES:,}. Received: {max(numbers)} in {path!r}")
        labels = np.array(numbers, np.int64)
        names = names or tuple(map(str, range(labels.max() + 1)))
        check_labels(labels, names)
    else:
        names = names or tuple(sorted(set(words)))
        number = {name: label for label, name in enumerate(names)}
        unknown = sorted(set(words) - set(names))
        if unknown:
            raise ValueError(f"Labels must be among the {len(names)} classes. Received: {unknown[:10]} in {path!r}")
        labels = np.array([number[word] for word in words], np.int64)
    full = [name if "://" in name else posixpath.join(root, name) for _, name, _ in rows]
    first: dict[str, int] = {}
    for row, name in enumerate(full):
        other = first.setdefault(name, row)
        if labels[other] != labels[row]:
            raise ValueError(
                "A file must have one label. "
                f"Received: {words[other]!r} in line {rows[other][0]} and {words[row]!r} in line {rows[row][0]} for "
                f"{name!r} in {path!r}"
            )
    folders = sorted({posixpath.dirname(name) for name in full})
    there = {name: set(entries_of(name).files) if tf.io.gfile.isdir(name or ".") else () for name in folders}
    missing = [name for name in full if posixpath.basename(name) not in there[posixpath.dirname(name)]]
    if missing:
        raise ValueError(f"{len(missing)} of {len(full)} files are missing. Received: {missing[:10]} in {path!r}")
    place = {name: number for number, name in enumerate(folders)}
    where = np.array([place[posixpath.dirname(name)] for name in full], np.int64)
    return file_source(folders, [posixpath.basename(name) for name in full], where, labels, names)


def read_text_file(path):
    """The text of a file in UTF-8, or of UTF-16 with its byte-order mark; local or remote.

    Raises:
        ValueError: there is no such file, it cannot be read, or it is in another encoding.
    """
    path = str(path)
    exists = tf.io.gfile.exists(path) if "://" in path else os.path.isfile(path)  # to open a pipe would wait forever
    if not exists:
        raise ValueError(f"There is no such file. Received: path={path!r}")
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except tf.errors.OpError as error:
        raise ValueError(f"The file cannot be read ({error.message}). Received: path={path!r}") from None
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is 0x{content[error.start]:02x}"
    else:
        if "\0" not in text:
            return text
        reason = "it has zero bytes"
    raise ValueError(
        f"The text must be UTF-8, or UTF-16 with its byte-order mark, and {reason}. Received: path={path!r}"
    )


def _rows(path):
    """`(line, file, label)` of each line that is not empty; the number of the line counts from 1."""
    lines = read_text_file(path).splitlines()
    if path.endswith(".csv"):
        try:
            reader = csv.reader(lines)
            rows = [[reader.line_num, *(cell.strip() for cell in row)] for row in reader if row]
        except csv.Error as error:
            raise ValueError(f"The list must be CSV ({error}). Received: path={path!r}") from None
        if rows and rows[0][1].lower() in HEADERS:
            rows = rows[1:]
    else:
        rows = [[number, *line.rsplit(maxsplit=1)] for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise ValueError(f"The list is empty. Received: path={path!r}")
    for row in rows:
        if len(row) != 3 or not all(row):
            raise ValueError(f"A line must be a file and a label. Received: {row[1:]!r} in line {row[0]} of {path!r}")
    return rows


def _check_words(words, rows, names, path):
    """Raises a `ValueError` unless the labels of a list are all integers from 0 or all names."""
    integers, numbers = [word.isdecimal() for word in words], list(map(_is_number, words))
    if all(integers) or not (any(integers) or all(numbers)) or set(words) <= set(names):
        return
    odd = integers.index(False)
    raise ValueError(
        "The labels of a list must be integers from 0, or names of which none is an integer; other names need "
        f"--config.data.class_names. Received: {words[odd]!r} in line {rows[odd][0]} of {path!r}"
    )


def _is_number(word):
    try:
        return float(word) is not None
    except ValueError:
        return False
