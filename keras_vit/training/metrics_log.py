"""What a run writes about its steps: a CSV table, and the same numbers for TensorBoard."""

import csv
import itertools

import numpy as np
import tensorflow as tf


class MetricsLog:
    """A CSV table with a row for each step, `metrics.csv`.

    Numbers are written with all their digits, so that equality can be checked. Rows are written at once and whole; a
    process that was killed leaves at most half a last line, which the next one cuts, as it cuts whatever follows a row
    that is none. No step stands twice: a run that goes on from a checkpoint cuts the rows of the steps after it. So
    that none is missing either, the rows of a step must be appended before its checkpoint is saved.

    Args:
        path: the file, any `tf.io.gfile` path; its folder exists.
        columns: what each row holds after its step.
        step: the step that training goes on from; the rows of later ones are cut.

    Raises:
        ValueError: the file has other columns.
    """

    def __init__(self, path, columns, step=0):
        self._path = str(path)
        self._columns = ("step", *columns)
        lines = _whole_lines(self._path)
        header = _line(self._columns)
        if lines and lines[0] != header:
            raise ValueError(
                f"The table must have the columns {header.strip()}. Received: {lines[0].strip()} in {self._path}"
            )
        kept = itertools.takewhile(lambda line: self._is_row(line, step), lines[1:])
        # Beside it, then in its place: whatever happens, one of the two is there.
        with tf.io.gfile.GFile(f"{self._path}.partial", "w") as file:
            file.write("".join([header, *kept]))
        tf.io.gfile.rename(f"{self._path}.partial", self._path, overwrite=True)
        self._file = tf.io.gfile.GFile(self._path, "a")

    def _is_row(self, line, step):
        number, *values = line.split(",")
        return len(values) == len(self._columns) - 1 and number.isdigit() and int(number) <= step

    def append(self, step, values):
        """Writes the rows of several steps.

        Args:
            step: the first of them.
            values: a sequence of rows, each a number for every column.
        """
        self._file.write("".join(_line((number, *row)) for number, row in enumerate(values, start=step)))
        self._file.flush()

    def close(self):
        self._file.close()


def read_metrics(path):
    """The columns of a table that `MetricsLog` wrote.

    Args:
        path: any `tf.io.gfile` path.

    Returns:
        A dict of float64 `(rows,)` by column name.

    Raises:
        ValueError: there is no such file, or nothing in it.
    """
    lines = _whole_lines(str(path))
    if not lines:
        raise ValueError(f"There is no table of metrics. Received: path={path}")
    names, *rows = csv.reader(lines)
    columns = np.array(rows, np.float64).reshape(len(rows), len(names))
    return dict(zip(names, columns.T))


class Scalars:
    """The same numbers for TensorBoard: `tensorboard --logdir FOLDER`.

    It only ever adds: of a run that goes on, TensorBoard shows the steps after its checkpoint twice.

    Args:
        folder: any `tf.io.gfile` path.
    """

    def __init__(self, folder):
        self._writer = tf.summary.create_file_writer(str(folder))

    def write(self, step, values):
        """Writes the numbers of one step, a dict of names such as "train/loss", to the file and at once."""
        # What `tf.summary.scalar` does, which is there only where the package tensorboard is.
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
        )
        with self._writer.as_default(step):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
        self._writer.flush()

    def close(self):
        self._writer.close()


def _line(values):
    """`repr` has every digit: reading it gives the same number."""
    words = (value if isinstance(value, str) else repr(np.asarray(value).item()) for value in values)
    return ",".join(words) + "\n"


def _whole_lines(path):
    """The lines of a file that end in a line break; none where there is no file."""
    if not tf.io.gfile.exists(path):
        return []
    with tf.io.gfile.GFile(path) as file:
        return [line for line in file.read().splitlines(keepends=True) if line.endswith("\n")]
