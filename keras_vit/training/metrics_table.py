"""A CSV table of metrics with a row for each step: `metrics.csv` and `evaluations.csv`."""

import contextlib
import csv
import logging
import os

import numpy as np

from keras_vit import files

log = logging.getLogger(__name__)


class MetricsTable:
    """A CSV table with a row for each step.

    Numbers are written with all their digits, so that equality can be checked. Rows are written whole and at once; a
    process that was killed leaves at most half a last line, which the next one cuts. No step stands twice: a run that
    is resumed from a checkpoint cuts the rows of the steps after it. So that none is missing either, the rows of a step
    must be flushed before its checkpoint is saved. Lines that are not rows, as a damaged disk leaves them, are left out
    with a warning.

    A local file has the rows as soon as they are appended. A remote one, which an object store takes only as a whole,
    gets them by `flush`.

    Args:
        path: the file, local or remote; its folder exists.
        columns: the names of the numbers in a row, after its step; None for those of the file and of the rows that are
            appended, with NaN in a row that lacks a column.
        step: the step that training is resumed from; the rows of later ones are cut.

    Raises:
        ValueError: the file has other columns.
    """

    def __init__(self, path, columns=None, step=0):
        self._path = str(path)
        lines = _whole_lines(self._path)
        self._grows = columns is None
        if columns is None and not lines:
            self._columns = self._file = None
            return
        if columns is None:
            columns = lines[0].strip().split(",")[1:]
        header = _line(("step", *columns))
        if lines and lines[0] != header:
            raise ValueError(
                f"The table must have the columns {header.strip()}. Received: {lines[0].strip()} in {self._path}"
            )
        self._columns = tuple(columns)
        self._open(self._rows(lines[1:], step))

    def _open(self, rows=()):
        with files.atomic_write(self._path) as file:
            file.write("".join([_line(("step", *self._columns)), *rows]))
        self._file = files.open_to_append(self._path)

    def _rows(self, lines, step):
        """The rows of the steps up to `step`."""
        rows, last, damaged = [], -1, 0
        for line in lines:
            number = self._step_of(line)
            if number is None or number <= last:
                damaged += 1
            elif number <= step:
                rows.append(line)
                last = number
        if damaged:
            log.warning("%s: %d lines are not rows of this table and are left out", self._path, damaged)
        return rows

    def _step_of(self, line):
        """The step of a line, or None where it is not a row."""
        number, *values = line.split(",")
        try:
            is_row = len([float(value) for value in values]) == len(self._columns)
        except ValueError:
            return None
        return int(number) if is_row and number.isascii() and number.isdigit() else None

    def append(self, step, metrics):
        """Writes the rows of several steps.

        Args:
            step: the first of them.
            metrics: a dict of equally long sequences of numbers, one for every column.

        Raises:
            ValueError: the names are not those of the columns, or the file cannot be written.
        """
        if self._file is None:
            self._columns = tuple(metrics)
            self._open()
        elif self._grows:
            metrics = self._with_all_columns(metrics)
        if sorted(metrics) != sorted(self._columns):
            raise ValueError(
                f"Every row must have the columns {', '.join(self._columns)}, in {self._path}. "
                f"Received: {', '.join(metrics)}"
            )
        rows = zip(*(metrics[name] for name in self._columns))
        text = "".join(_line((number, *row)) for number, row in enumerate(rows, start=step))
        with self._explained():
            self._file.write(text)
        if not files.is_remote(self._path):
            self.flush()

    def _with_all_columns(self, metrics):
        """The metrics with NaN for missing columns; new ones are added to the file, with NaN in its rows."""
        new = [name for name in metrics if name not in self._columns]
        if new:
            self.close()
            rows = [line.rstrip("\n") + ",nan" * len(new) + "\n" for line in _whole_lines(self._path)[1:]]
            self._columns = (*self._columns, *new)
            self._open(rows)
        length = len(next(iter(metrics.values())))
        return {name: metrics.get(name, [float("nan")] * length) for name in self._columns}

    def flush(self):
        """Lets the file have all rows.

        Raises:
            ValueError: it cannot be written.
        """
        if self._file is not None:
            with self._explained():
                self._file.flush()

    def close(self):
        if self._file is not None:
            with self._explained():
                self._file.close()

    @contextlib.contextmanager
    def _explained(self):
        try:
            with files.os_errors(self._path):
                yield
        except OSError as error:
            reason = str(error.strerror or error).split("\n")[0]
            raise ValueError(
                f"The metrics cannot be written ({reason}). Make room if the disk is full, and repeat the same "
                f"command, which goes on from the last checkpoint. Received: {self._path}"
            ) from error


def read_metrics(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The columns of a table that `MetricsTable` wrote.

    Args:
        path: the file, local or remote.

    Returns:
        A dict of float64 `(rows,)` by column name.

    Raises:
        ValueError: there is no such file, nothing in it, or what is not a table of numbers.
    """
    lines = _whole_lines(str(path))
    if not lines:
        raise ValueError(f"There is no table of metrics. Received: path={path}")
    names, *rows = csv.reader(lines)
    try:
        columns = np.array(rows, np.float64).reshape(len(rows), len(names))
    except ValueError as error:
        raise ValueError(f"The table of metrics is damaged ({error}). Received: path={path}") from error
    return dict(zip(names, columns.T))


def _line(values):
    """`repr` has every digit: reading it gives the same number."""
    words = (value if isinstance(value, str) else repr(np.asarray(value).item()) for value in values)
    return ",".join(words) + "\n"


def _whole_lines(path):
    """The lines of a file that end in a line break; none if there is no file."""
    if not files.exists(path):
        return []
    try:
        text = files.read_text(path)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"The table of metrics is damaged ({error}). Repair it, or choose another workdir. Received: path={path}"
        ) from error
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
