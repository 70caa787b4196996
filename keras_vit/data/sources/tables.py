"""Tables of labels: CSV and TSV files with any header, of which one column has image files."""

import csv
import io
import posixpath
import unicodedata
from collections.abc import Sequence

import tensorflow as tf

from keras_vit.data.sources.listing import IMAGE_ENDINGS, entries, text_of, warn_once

HEADERS = {"file", "filename", "file_name", "path", "filepath", "image", "image_path"}
_LABEL_HEADERS = {"label", "class", "class_name", "target", "category"}
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
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
        return name if "://" in name else posixpath.join(self._root, name)

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
) -> tuple[list[list], tuple[str, ...]]:
    """Returns `[line number, file, label]` for each row of a table, and its columns of classes.

    Without a header, the table has two columns. With a header, the columns are those named
    `file_column` and `label_column`; "" guesses them, and guesses of unusual names are logged. If
    no column can be the label, the columns of zeros and ones are classes: those of `class_names`,
    or all. The label is then a tuple with the names of the classes that are 1, and with
    `label_separator` a tuple with the names in the label column, which may be empty.

    Raises:
        ValueError: the table is empty, a column does not exist or cannot be guessed, or a row lacks
            a file or a label.
    """
    rows = _rows(path)
    names = rows[0][1]
    is_header = bool(file_column or label_column)
    if not is_header and not any(map(files.find, names)):
        has_usual_name = any(name.lower() in HEADERS for name in names)
        is_header = has_usual_name or (len(rows) > 1 and any(map(files.find, rows[1][1])))
    columns = (0, 1)
    classes: tuple[int, ...] = ()
    if is_header:
        rows = rows[1:]
        file = _file_column(path, names, rows, files, file_column, label_column)
        if not label_column and not label_separator:
            classes = _class_columns(path, names, rows, file, class_names)
        label = None if classes else _label_column(path, names, file, label_column)
        _report(path, names, file, label, classes, bool(file_column and label_column))
        columns = (file, file if label is None else label)
    elif len(names) != 2:
        raise ValueError(
            "A table with more than two columns must have a header; `root` "
            "(--config.data.path) is the folder of its files. Received: "
            f"{','.join(names)!r:.200} in line 1 of {path!r}"
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
        if classes:
            positive = tuple(names[i] for i in classes if float(cells[i]) == 1)
            chosen.append([line, file_name, positive])
        elif label_separator:
            parts = (part.strip() for part in label_text.split(label_separator))
            chosen.append([line, file_name, tuple(part for part in parts if part)])
        else:
            chosen.append([line, file_name, label_text])
    return chosen, tuple(names[i] for i in classes)


def values(path: str, column: str, lines: list[int]) -> list[str]:
    """Returns the values in a column of a table's header for line numbers; [] if it has none of
    this name."""
    header, *rows = _rows(path) if column and is_table(path) else [(0, [])]
    if column not in header[1]:
        return []
    index = header[1].index(column)
    value_of = {line: cells[index] for line, cells in rows if index < len(cells)}
    if empty := [line for line in lines if not value_of.get(line)]:
        raise ValueError(
            f"Each row must have a value in the column of groups. Received: nothing in {column!r} "
            f"of line {empty[0]} of {path!r}"
        )
    return [value_of[line] for line in lines]


def _rows(path):
    """Returns `(line number, cells)` for each row that is not empty."""
    delimiter = _DELIMITERS[posixpath.splitext(path)[1].lower()]
    reader = csv.reader(io.StringIO(text_of(path), newline=""), delimiter=delimiter)
    rows = []
    for row in reader:
        cells = [cell.strip() for cell in row]
        if any(cells):
            rows.append((reader.line_num, cells))
    if not rows:
        raise ValueError(f"The list is empty. Received: path={path!r}")
    return rows


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


def _class_columns(path, names, rows, file, class_names):
    """Returns the indices of the columns of classes, in the order of `class_names`; () if another
    column can be the label."""
    names = [unicodedata.normalize("NFC", name) for name in names]
    others = [i for i in range(len(names)) if i != file]
    if len(others) == 1 or any(names[i].lower() in _LABEL_HEADERS for i in others):
        return ()
    if class_names and set(class_names) <= set(names):
        chosen = [names.index(name) for name in class_names]
    else:
        chosen = [i for i in others if all(i < len(row) and _is_flag(row[i]) for _, row in rows)]
        if len(chosen) < 2:
            return ()
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
    return cell in ("0", "1", "0.0", "1.0")


def _label_column(path, names, file, label_column):
    """Returns the index of the column with the labels."""
    if label_column:
        label = names.index(label_column)
    else:
        others = [i for i in range(len(names)) if i != file]
        known = [i for i in others if names[i].lower() in _LABEL_HEADERS]
        candidates = others if len(others) == 1 else known
        label = _only(candidates, names, "label_column", "with labels", path)
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
    if len(candidates) != 1:
        raise ValueError(
            f"`{field}` must be set, because {len(candidates)} columns look like one {what} "
            f"(--config.data.{field}); the columns are {', '.join(names)}. Received: {field}='' "
            f"for {path!r}"
        )
    return candidates[0]
