"""Readers of UTF-8 text files, local or remote, with or without a byte-order mark."""

import csv
import io
import os

from keras_vit.files import read_text


def text_of(path: str | os.PathLike) -> str:
    """Returns the text of a file; raises a `ValueError` if it cannot be read or is not UTF-8."""
    try:
        return read_text(path).removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"The file must be a UTF-8 text file ({error}). Received: path={str(path)!r}"
        ) from None


def lines_of(path: str | os.PathLike) -> list[str]:
    """Returns the lines of a file that are not empty, without white space around them."""
    return [*filter(None, map(str.strip, text_of(path).splitlines()))]


def names_in(class_names):
    """Returns the lines of the file `class_names` as a tuple, or None if it is ""; returns names
    that are no path unchanged.

    Raises:
        ValueError: the file cannot be read, or has no names.
    """
    if not isinstance(class_names, str):
        return class_names
    names = tuple(lines_of(class_names)) if class_names else None
    if names == ():
        raise ValueError(
            "`class_names` must be a file with one class name per line. Received: "
            f"class_names={class_names!r}, a file without names"
        )
    return names


def csv_rows(path: str, delimiter: str = ",") -> list[tuple[int, list[str]]]:
    """Returns `(line number, cells)` for each row of a CSV file that is not empty; cells have no
    white space around them.

    The line number of a row of several lines is that of its last line.

    Raises:
        ValueError: the file cannot be read, or a quotation mark is not closed.
    """
    reader = csv.reader(io.StringIO(text_of(path), newline=""), delimiter=delimiter, strict=True)
    try:
        rows = [(reader.line_num, [*map(str.strip, cells)]) for cells in reader]
    except csv.Error as error:
        raise ValueError(
            "The file has a row that cannot be read, perhaps with a quotation mark that is not "
            f"closed ({error}). Received: line {reader.line_num} of {path!r}"
        ) from None
    return [(line, cells) for line, cells in rows if any(cells)]


def check_columns(names: list[str], path: str) -> None:
    """Raises a `ValueError` if columns of a file have the same name, unless it is empty."""
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise ValueError(f"Columns must have different names. Received: {twice} in {path!r}")
