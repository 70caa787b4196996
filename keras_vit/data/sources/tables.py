"""Tables of labels: CSV and TSV files with any header, of which one column has image files."""

import posixpath
import re
import unicodedata
from collections.abc import Sequence

import tensorflow as tf

from keras_vit.data.sources.listing import IMAGE_ENDINGS, csv_rows, entries, text_of, warn_once

HEADERS = {"file", "filename", "file_name", "path", "filepath", "image", "image_path"}
_LABEL_HEADERS = {"label", "class", "class_name", "target", "category"}
_DELIMITERS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}
_FLAGS = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}
_UNKNOWN = {"", "-1", "-1.0", "nan", "na", "n/a", "none", "null"}  # in columns of zeros and ones
_ENDINGS = (*IMAGE_ENDINGS, *map(str.upper, IMAGE_ENDINGS))
_SHOWN_ROWS = 20  # rows in which existing files are looked for


def is_table(path: str) -> bool:
    """Returns whether a list is a table, according to its ending."""
    return posixpath.splitext(path)[1].lower() in _DELIMITERS


class Files:
    """The files below a folder; each folder is listed once, which is faster than checking files."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._names: dict[str, set[str]] = {}

    def path(self, name: str) -> str:
        """Returns the path of a file, whether it exists or not."""
        if "://" in name:
            return name
        # A file has one path, also if a list spells it ./a.jpg.
        return posixpath.join(self._root, posixpath.normpath(name)) if name else self._root

    def find(self, name: str) -> str | None:
        """Returns the path of an existing file, of which `name` may lack the ending, or None."""
        folder, file = posixpath.split(self.path(name))
        if folder not in self._names:
            exists = tf.io.gfile.isdir(folder or ".")
            self._names[folder] = set(entries(folder or ".")[1]) if exists else set()
        names = self._names[folder]
        if file in names:
            return posixpath.join(folder, file)
        complete = [file + ending for ending in _ENDINGS if file + ending in names]
        # Of two files that differ only in the ending, none is guessed.
        return posixpath.join(folder, complete[0]) if file and len(complete) == 1 else None


def read_table(
    path: str,
    files: Files,
    file_column: str = "",
    label_column: str = "",
    label_separator: str = "",
    class_names: Sequence[str] = (),
    group_column: str = "",
) -> tuple[list[list], tuple[str, ...]]:
    """Returns `[line number, file, label]` for each row of a table, and its columns of classes.

    Without a header, the table has two columns. With a header, the columns are those named
    `file_column` and `label_column`; "" guesses them, and guesses of unusual names are logged. If
    no column can be the label, the columns of zeros and ones, or of False and True, are classes:
    those of `class_names`, or all except `group_column`. The label is then a tuple with the names
    of the classes that are 1, and with `label_separator` a tuple with the names in the label
    column, which may be empty.

    Raises:
        ValueError: the table is empty, a column does not exist or cannot be guessed, or a row lacks
            a file or a label.
    """
    rows = _rows(path)
    names = rows[0][1]
    columns = (0, 1)
    classes: tuple[int, ...] = ()
    if file_column or label_column or _is_header(rows, files):
        rows = rows[1:]
        file = _file_column(path, names, rows, files, file_column, label_column)
        if not label_column and not label_separator:
            classes = _class_columns(path, names, rows, file, class_names, group_column)
        label = None if classes else _label_column(path, names, file, label_column)
        _report(path, names, file, label, classes, bool(file_column and label_column))
        columns = (file, file if label is None else label)
    elif len(names) != 2:
        raise ValueError(
            "A table with a number of columns other than two must have a header; `root` "
            "(--config.data.path) is the folder of its files. Received: "
            f"{len(names)} columns, {','.join(names)!r:.200}, in line 1 of {path!r}"
        )
    if not rows:
        raise ValueError(f"The list is empty. Received: path={path!r}")
    chosen = []
    for line, cells in rows:
        pair = [cells[i] for i in columns if i < len(cells)]
        required = pair[:1] if label_separator else pair  # an image may have no class
        if len(pair) != 2 or not all(required) or len(cells) > len(names):
            raise ValueError(
                f"Each line must have a file and a label, and at most {len(names)} columns. "
                f"Received: {cells!r} in line {line} of {path!r}"
            )
        file_name, label_text = pair
        _check_one_row(path, line, cells, file_name + label_text, files)
        if classes:
            positive = tuple(names[i] for i in classes if _FLAGS[cells[i].lower()])
            chosen.append([line, file_name, positive])
        elif label_separator:
            parts = (part.strip() for part in label_text.split(label_separator))
            chosen.append([line, file_name, tuple(part for part in parts if part)])
        else:
            chosen.append([line, file_name, label_text])
    if label_separator and not any(len(labels) > 1 for _, _, labels in chosen):
        warn_once(f"{path}: no image has several classes separated by {label_separator!r}")
    return chosen, tuple(names[i] for i in classes)


def values(path: str, column: str, lines: list[int]) -> list[str]:
    """Returns the values in a column of a table's header for line numbers; [] if it has none of
    this name."""
    if not column or not is_table(path):
        return []
    (_, names), *rows = _rows(path)
    if column not in names:
        return []
    if names.count(column) > 1:
        raise ValueError(
            f"Columns must have different names. Received: several {column!r} in {path!r}"
        )
    index = names.index(column)
    value_of = {line: cells[index] for line, cells in rows if index < len(cells)}
    if empty := [line for line in lines if not value_of.get(line)]:
        raise ValueError(
            f"Each row must have a value in the column of groups. Received: nothing in {column!r} "
            f"of line {empty[0]} of {path!r}"
        )
    return [value_of[line] for line in lines]


def _rows(path):
    """Returns `(line number, cells)` for each row that is not empty."""
    usual, *others = _DELIMITERS[posixpath.splitext(path)[1].lower()]
    first_line = text_of(path).lstrip().partition("\n")[0]
    delimiter = next((mark for mark in (usual, *others) if mark in first_line), usual)
    if delimiter != usual:
        warn_once(f"{path}: columns are separated by {delimiter!r}")
    stripped = ((line, [cell.strip() for cell in row]) for line, row in csv_rows(path, delimiter))
    rows = [(line, cells) for line, cells in stripped if any(cells)]
    if not rows:
        raise ValueError(f"The list is empty. Received: path={path!r}")
    return rows


def _is_header(rows, files):
    """Returns whether the first row of a table has the names of the columns."""
    names = rows[0][1]
    if any(_is_image(name, files) for name in names):
        return False
    has_usual_name = any(name.lower() in HEADERS for name in names)
    return has_usual_name or (len(rows) > 1 and any(map(files.find, rows[1][1])))


def _is_image(cell, files):
    """Returns whether a cell of the first row is no name of a column; a file may be missing."""
    is_file = cell.lower() not in HEADERS and files.find(cell) is not None
    return is_file or cell.lower().endswith(IMAGE_ENDINGS)


def _check_one_row(path, line, cells, text, files):
    """Raises a `ValueError` if a row of cells seems to consist of several rows; `text` is its file
    and label."""
    if "\n" in text or any(_has_rows(cell, files) for cell in cells):
        raise ValueError(
            "A cell of several lines must not have a file, a label or a row; look for a "
            f"quotation mark that is not closed. Received: line {line} of {path!r} ends one"
        )


def _has_rows(cell, files):
    """Returns whether a cell of several lines has swallowed the row of a file."""
    lines = cell.split("\n")[1:]
    return any(files.find(part.strip()) for line in lines for part in re.split("[,;\t]", line))


def _file_column(path, names, rows, files, file_column, label_column):
    """Returns the index of the column with the files."""
    for field, name in (("file_column", file_column), ("label_column", label_column)):
        if name and names.count(name) != 1:
            raise ValueError(
                f"`{field}` must be one of the columns {', '.join(names)}. Received: "
                f"{field}={name!r} for {path!r}"
            )
    if file_column:
        return names.index(file_column)
    others = [i for i, name in enumerate(names) if not label_column or name != label_column]
    known = [i for i in others if names[i].lower() in HEADERS]
    candidates = known if len(known) == 1 else _with_files(others, rows, files)
    return _only(candidates, names, "file_column", "with existing files", path)


def _class_columns(path, names, rows, file, class_names, group_column):
    """Returns the indices of the columns of classes, in the order of `class_names`; () if another
    column can be the label."""
    names = [unicodedata.normalize("NFC", name) for name in names]
    others = [i for i in range(len(names)) if i != file and names[i] != group_column]
    if any(names[i].lower() in _LABEL_HEADERS for i in others):
        return ()
    if class_names and set(class_names) <= set(names):
        chosen = [names.index(name) for name in class_names]
    else:
        cells_of = {i: [row[i] if i < len(row) else "" for _, row in rows] for i in others}
        chosen = [i for i in others if all(map(_is_flag, cells_of[i]))]
        if len(others) == 1 or len(chosen) < 2:
            return ()
        for i in others:
            _check_no_class(path, names[i], [line for line, _ in rows], cells_of[i])
        if missing := [name for name in class_names if name not in names]:
            raise ValueError(
                "Each class must have a column, or --config.data.label_column must be set. "
                f"Received: no columns {missing[:10]} in {path!r}"
            )
    for line, row in rows:
        if odd := [names[i] for i in chosen if i >= len(row) or not _is_flag(row[i])]:
            raise ValueError(
                "The columns of classes must have zeros and ones. Received: no 0 or 1 for "
                f"{odd[:10]} in line {line} of {path!r}"
            )
    twice = sorted({names[i] for i in chosen if names.count(names[i]) > 1})
    if twice:
        raise ValueError(f"Columns must have different names. Received: {twice} in {path!r}")
    return tuple(chosen)


def _is_flag(cell):
    return cell.lower() in _FLAGS


def _check_no_class(path, name, lines, cells):
    """Raises a `ValueError` if a column seems to be a class, but some cells are no zeros and
    ones."""
    odd = [index for index, cell in enumerate(cells) if not _is_flag(cell)]
    has_positive = any(_FLAGS.get(cell.lower()) for cell in cells)
    is_unknown = all(cells[index].lower() in _UNKNOWN for index in odd)
    if odd and has_positive and (is_unknown or len(odd) < 0.1 * len(cells)):
        raise ValueError(
            "A column of a class must have zeros and ones; to leave the column out, name the "
            f"classes by --config.data.class_names. Received: {cells[odd[0]]!r} in the column "
            f"{name!r} in line {lines[odd[0]]} of {path!r}, and {len(odd)} such rows"
        )


def _label_column(path, names, file, label_column):
    """Returns the index of the column with the labels."""
    if label_column:
        label = names.index(label_column)
    else:
        others = [i for i in range(len(names)) if i != file]
        known = [i for i in others if names[i].lower() in _LABEL_HEADERS]
        candidates = others if len(others) == 1 else known
        what = "with labels, and not two or more consist of zeros and ones"
        label = _only(candidates, names, "label_column", what, path)
    if file == label:
        raise ValueError(
            "`file_column` and `label_column` must be different columns. Received: "
            f"{names[file]!r} for {path!r}"
        )
    return label


def _report(path, names, file, label, classes, is_set):
    """Logs which columns were guessed, unless their names are usual."""
    if classes:
        shown = ", ".join([names[i] for i in classes[:10]] + ["..."] * (len(classes) > 10))
        warn_once(
            f"{path}: files are in the column {names[file]!r}; {len(classes)} columns of zeros and "
            f"ones are classes: {shown} (--config.data.class_names, --config.data.label_column)"
        )
        return
    is_usual = names[file].lower() in HEADERS and names[label].lower() in _LABEL_HEADERS
    if not is_usual and not is_set:
        warn_once(
            f"{path}: files are in the column {names[file]!r} and labels in {names[label]!r} "
            "(--config.data.file_column, --config.data.label_column)"
        )


def _with_files(columns, rows, files):
    """Returns the columns whose first cells are existing files."""
    first = [cells for _, cells in rows[:_SHOWN_ROWS]]
    return [i for i in columns if all(i < len(row) and files.find(row[i]) for row in first)]


def _only(candidates, names, field, what, path):
    """Returns the only candidate for a column; raises a `ValueError` for none or several."""
    if len(candidates) != 1:
        raise ValueError(
            f"`{field}` must be set, because {len(candidates)} columns look like one {what} "
            f"(--config.data.{field}); the columns are {', '.join(names)}. Received: {field}='' "
            f"for {path!r}"
        )
    return candidates[0]
