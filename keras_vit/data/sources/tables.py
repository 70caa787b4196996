"""Tables of labels: CSV and TSV files with any header, of which one column has image files."""

import posixpath
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from keras_vit.data.sources.listing import IMAGE_ENDINGS, existing, warn_once
from keras_vit.data.sources.text_files import check_columns, csv_rows, text_of

HEADERS = {"file", "filename", "file_name", "path", "filepath", "image", "image_path"}
_LABEL_HEADERS = {"label", "class", "class_name", "target", "category"}
_DELIMITERS = {".csv": ",;\t", ".tsv": "\t"}
_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_UNKNOWN = {"", "-1", "-1.0", "nan", "na", "n/a", "none", "null"}  # in columns of zeros and ones
_ENDINGS = (*IMAGE_ENDINGS, *map(str.upper, IMAGE_ENDINGS))
_SHOWN_ROWS = 20  # rows in which existing files are looked for


class Row(NamedTuple):
    """An image in a list."""

    line: int
    file: str
    label: str | tuple[str, ...]  # a tuple if images may have any number of classes
    group: str = ""


class Files:
    """The files below a folder; each folder is listed once, which is faster than checking files."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._present: dict[str, set[str]] = {}

    def path(self, name: str) -> str:
        """Returns the path of a file, whether it exists or not."""
        if "://" in name:
            return name
        # A file has one path, also if a list spells it ./a.jpg.
        return posixpath.join(self._root, posixpath.normpath(name))

    def find(self, name: str) -> str | None:
        """Returns the path of an existing file, of which `name` may lack the ending, or None."""
        if not name:
            return None
        path = self.path(name)
        folder = posixpath.dirname(path)
        if folder not in self._present:
            self._present[folder] = existing([path])
        present = self._present[folder]
        if path in present:
            return path
        complete = [path + ending for ending in _ENDINGS if path + ending in present]
        # Of two files that differ only in the ending, none is guessed.
        return complete[0] if len(complete) == 1 else None


class _Table(NamedTuple):
    path: str
    names: list[str]  # of the columns
    rows: list[tuple[int, list[str]]]  # line numbers, and a cell for each column

    def cells(self, column: int) -> list[str]:
        return [cells[column] for _, cells in self.rows]


def is_table(path: str) -> bool:
    """Returns whether a list is a table, according to its ending."""
    return posixpath.splitext(path)[1].lower() in _DELIMITERS


def read_table(
    path: str,
    files: Files,
    file_column: str = "",
    label_column: str = "",
    label_separator: str = "",
    class_names: Sequence[str] = (),
    group_column: str = "",
    usual_label: str = "",
) -> tuple[list[Row], tuple[str, ...]]:
    """Returns the rows of a table, and the names of its columns of classes.

    Without a header, the table has two columns. With a header, the columns are those named
    `file_column` and `label_column`; "" guesses them, and guesses of unusual names are logged. If
    no column can be the label, the columns of zeros and ones, or of False and True, are classes:
    those of `class_names`, or all except `group_column`. The label is then a tuple with the names
    of the classes that are 1, and with `label_separator` a tuple with the names in the label
    column, which may be empty. If the table has the column `group_column`, it has the groups. If
    it has the column `usual_label`, that is the label.

    Raises:
        ValueError: the table is empty, a column does not exist or cannot be guessed, or a row lacks
            a file, a label or a group.
    """
    table = _read(path, files, has_header=bool(file_column or label_column))
    names = table.names
    if usual_label and usual_label in names:  # a column may have no name
        label_column = usual_label
    file = _file_column(table, files, file_column, label_column)
    classes = []
    if not label_column and not label_separator:
        classes = _class_columns(table, file, class_names, group_column)
    label = None if classes else _label_column(table, file, label_column)
    _report(table, file, label, classes, file_column, label_column)
    # A column without a name, such as that of the row numbers of pandas, is no column of groups.
    group = names.index(group_column) if group_column and group_column in names else None
    # With a separator, an image may have no class.
    required = [i for i in (file, None if label_separator else label, group) if i is not None]

    def label_of(cells):
        if classes:
            return tuple(names[i] for i in classes if _FLAGS[cells[i].lower()])
        if label_separator:
            return tuple(filter(None, map(str.strip, cells[label].split(label_separator))))
        return cells[label]

    for line, cells in table.rows:
        if any(not cells[i] or "\n" in cells[i] for i in required):
            raise ValueError(
                "Each line must have a file and a label, and a group if `groups` is a column, each "
                f"in one line. Received: {cells!r} in line {line} of {path!r}"
            )
    rows = [
        Row(line, cells[file], label_of(cells), "" if group is None else cells[group])
        for line, cells in table.rows
    ]
    if label_separator and all(len(row.label) < 2 for row in rows):
        warn_once(f"{path}: no image has several classes separated by {label_separator!r}")
    return rows, tuple(names[i] for i in classes)


def _read(path, files, has_header):
    """Returns a `_Table`, whose columns are named "file" and "label" if it has no header."""
    usual, *others = _DELIMITERS[posixpath.splitext(path)[1].lower()]
    first_line = text_of(path).lstrip().partition("\n")[0]
    delimiter = next((mark for mark in (usual, *others) if mark in first_line), usual)
    if delimiter != usual:
        warn_once(f"{path}: columns are separated by {delimiter!r}")
    rows = csv_rows(path, delimiter)
    names = rows[0][1] if rows else []
    if has_header or not any(_is_image(cell, files) for cell in names):
        names = [unicodedata.normalize("NFC", name) for name in names]
        rows = rows[1:]
    elif len(names) == 2:
        names = ["file", "label"]
    else:
        raise ValueError(
            "A table with a number of columns other than two must have a header; `root` "
            "(--config.data.path) is the folder of its files. Received: "
            f"{len(names)} columns, {','.join(names)!r:.200}, in line 1 of {path!r}"
        )
    if not rows:
        raise ValueError(f"The list is empty. Received: path={path!r}")
    check_columns(names, path)
    for line, cells in rows:
        if len(cells) > len(names) or len(cells) == 1 < len(names):
            raise ValueError(
                f"Each line must have a file and a label, and at most {len(names)} columns. "
                f"Received: {cells!r} in line {line} of {path!r}"
            )
        if _has_swallowed_rows(cells, files):
            raise ValueError(
                "A cell of several lines must not have the row of a file; look for a quotation "
                f"mark that is not closed. Received: line {line} of {path!r} ends one"
            )
    padded = [(line, cells + [""] * (len(names) - len(cells))) for line, cells in rows]
    return _Table(path, names, padded)


def _is_image(cell, files):
    """Returns whether a cell of the first row is a file, which may be missing, and no header."""
    is_file = cell.lower().endswith(IMAGE_ENDINGS) or files.find(cell)
    return bool(is_file) and cell.lower() not in HEADERS


def _has_swallowed_rows(cells, files):
    """Returns whether a cell of several lines has the file of another row."""
    lines = [line for cell in cells for line in cell.split("\n")[1:]]
    return any(files.find(part.strip()) for line in lines for part in re.split("[,;\t]", line))


def _file_column(table, files, name, label_column):
    """Returns the index of the column with the files: a usual header, or else existing files."""
    candidates = [i for i in range(len(table.names)) if table.names[i] != (label_column or None)]
    likely = [i for i in candidates if table.names[i].lower() in HEADERS]
    if len(likely) != 1:
        likely = [i for i in candidates if all(map(files.find, table.cells(i)[:_SHOWN_ROWS]))]
    return _chosen(table, "file_column", name, candidates, likely)


def _label_column(table, file, name):
    """Returns the index of the column with the labels: the only other one, or a usual header."""
    likely = candidates = [i for i in range(len(table.names)) if i != file]
    if len(candidates) > 1:
        likely = [i for i in candidates if table.names[i].lower() in _LABEL_HEADERS]
    return _chosen(table, "label_column", name, candidates, likely)


def _chosen(table, field, name, candidates, likely):
    """Returns the index of the column `name`, a candidate, or of the only likely one if it is
    ""."""
    chosen = [i for i in candidates if table.names[i] == name] if name else likely
    if len(chosen) != 1:
        columns = ", ".join(table.names[i] for i in candidates)
        raise ValueError(
            f"`{field}` must be set to one of the columns {columns} (--config.data.{field}). "
            f"Received: {field}={name!r} for {table.path!r}"
        )
    return chosen[0]


def _class_columns(table, file, class_names, group_column):
    """Returns the indices of the columns of classes, in the order of `class_names`; [] if another
    column can be the label."""
    names = table.names
    others = [i for i, name in enumerate(names) if i != file and name != group_column]
    if any(names[i].lower() in _LABEL_HEADERS for i in others):
        return []
    if class_names and set(class_names) <= set(names):
        columns = [names.index(name) for name in class_names]
    else:
        columns = [i for i in others if _seems_a_class(table.cells(i))]
        if len(others) == 1 or len(columns) < 2:
            return []
        if missing := [name for name in class_names if name not in names]:
            raise ValueError(
                "Each class must have a column, or --config.data.label_column must be set. "
                f"Received: no columns {missing[:10]} in {table.path!r}"
            )
    for line, cells in table.rows:
        for i in columns:
            if cells[i].lower() not in _FLAGS:
                raise ValueError(
                    "A column of a class must have zeros and ones; to leave the column out, name "
                    "the classes by --config.data.class_names. Received: "
                    f"{cells[i]!r} in the column {names[i]!r} in line {line} of {table.path!r}"
                )
    return columns


def _seems_a_class(cells):
    """Returns whether most cells of a column are zeros and ones, apart from unknown ones."""
    known = [cell.lower() for cell in cells if cell.lower() not in _UNKNOWN]
    return sum(cell in _FLAGS for cell in known) > len(known) / 2


def _report(table, file, label, classes, file_column, label_column):
    """Logs which columns are read, if one of them was guessed and has no usual name."""
    names = table.names
    if classes:
        shown = ", ".join([names[i] for i in classes[:10]] + ["..."] * (len(classes) > 10))
        warn_once(
            f"{table.path}: files are in the column {names[file]!r}; {len(classes)} columns of "
            f"zeros and ones are classes: {shown} (--config.data.class_names, "
            "--config.data.label_column)"
        )
    elif not (
        (file_column or names[file].lower() in HEADERS)
        and (label_column or names[label].lower() in _LABEL_HEADERS)
    ):
        warn_once(
            f"{table.path}: files are in the column {names[file]!r} and labels in "
            f"{names[label]!r} (--config.data.file_column, --config.data.label_column)"
        )
