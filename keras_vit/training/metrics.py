"""Writes the metrics of a run: `metrics.csv`, `evaluations.csv`, TensorBoard scalars and log
lines."""

import collections
import csv
import itertools
import os

import numpy as np
import tensorflow as tf  # its summary writer works without the tensorboard package

from keras_vit import files
from keras_vit.training import curve
from keras_vit.training.checkpoint_manager import DISK_ADVICE
from keras_vit.training.progress import format_metrics, wrap
from keras_vit.training.trackers import Tracker


class MetricWriter:
    """Writes the metrics of steps and evaluations, also to a tracker if it is named; does nothing
    unless this is process 0."""

    def __init__(
        self, workdir, step, columns, progress, *, log_every_steps, test_examples, tracker=""
    ):
        self._enabled = workdir.is_chief
        if not self._enabled:
            return
        self._steps_path = workdir.path / "metrics.csv"
        self._steps_table = MetricsTable(self._steps_path, (*columns, "bad_examples"), step)
        self._evaluations_path = workdir.path / "evaluations.csv"
        self._scalars = [Scalars(workdir.tensorboard)]
        if tracker:
            self._scalars.append(Tracker(tracker, workdir, progress.write))
        self._progress = progress
        self._log_every_steps = log_every_steps
        self._test_examples = test_examples
        self._start_line()

    def write_steps(self, step, outputs, bad_counts):
        """Writes the `TrainOutputs` of the steps up to `step`, and a log line if one is due."""
        if not self._enabled:
            return
        metrics = outputs.metrics
        first = step - len(metrics["loss"]) + 1
        self._steps_table.append(first, {**metrics, "bad_examples": bad_counts})
        for name, values in metrics.items():
            self._since_line[name].extend(values)
        self._input_wait += outputs.input_wait
        if step % self._log_every_steps and step < self._progress.total_steps:
            return
        # Leave out skipped steps, unless all steps were skipped.
        values = np.array(list(self._since_line.values()), np.float64)
        finite = np.isfinite(values).all(0)
        used = finite if finite.any() else ~finite
        means = dict(zip(self._since_line, values[:, used].mean(1).tolist()))
        means["learning_rate"] = float(self._since_line["learning_rate"][-1])
        self.flush()
        skipped = int((~finite).sum())
        self._progress.report(
            step, len(finite), means, self._input_wait, outputs.peak_memory, skipped
        )
        self._write_scalars(step, {f"train/{name}": value for name, value in means.items()})
        self._start_line()

    def _start_line(self):
        self._since_line = collections.defaultdict(list)
        self._input_wait = 0.0

    def write_evaluation(self, step, metrics):
        """Writes the metrics of an evaluation after `step` steps; `metrics` is a dict of
        numbers."""
        if not self._enabled:
            return
        write_evaluation(self._evaluations_path, step, metrics)
        self._write_scalars(step, {f"test/{name}": value for name, value in metrics.items()})
        shown = dict(metrics)
        scored = int(shown.pop("examples"))
        bad = shown.pop("bad_examples")
        total = f"{self._test_examples:,}"
        count = total if scored == self._test_examples else f"{scored:,} of {total}"
        missing = f"; {bad:,} cannot be read" if bad else ""
        self._progress.write(
            wrap(f"after step {step}: {format_metrics(shown)} on {count} test images{missing}")
        )
        self.flush()
        tables = read_metrics(self._steps_path), read_metrics(self._evaluations_path)
        if line := curve.reading(*tables, self._progress.total_steps):
            self._progress.write(wrap(f"  {line}"))

    def flush(self):
        """Writes all pending rows. Call this before saving a checkpoint, so that no row is lost."""
        if self._enabled:
            self._steps_table.flush()

    def close(self):
        if self._enabled:
            self.flush()
            for scalars in self._scalars:
                scalars.close()

    def _write_scalars(self, step, values):
        for scalars in self._scalars:
            scalars.write(step, values)


class MetricsTable:
    """A CSV table with one row per step. To resume from `step`, the constructor drops the rows of
    later steps."""

    def __init__(self, path, columns, step=0):
        self._path = str(path)
        self._columns = tuple(columns)
        header = ",".join(("step", *self._columns)) + "\n"
        first, *lines = _whole_lines(self._path) or [header]
        if first != header:
            raise ValueError(
                f"The table header must be {header.strip()}. Received: {first.strip()} in "
                f"{self._path}"
            )
        rows = {}
        for line in lines:  # a crash may leave malformed lines
            number, *values = line.split(",")
            if number.isdecimal() and int(number) <= step and len(values) == len(self._columns):
                rows.setdefault(int(number), line)
        with files.atomic_write(self._path) as file:
            file.write("".join([header, *rows.values()]))
        self._pending = ""

    def append(self, step, metrics):
        """Appends one row per step, starting at `step`; `metrics` maps column names to arrays of
        equal length."""
        rows = zip(itertools.count(step), *(metrics[name] for name in self._columns))
        self._pending += "".join(map(_line, rows))
        # In an object store, each flush would rewrite the whole file.
        if not files.is_remote(self._path):
            self.flush()

    def flush(self):
        text = self._pending
        self._pending = ""
        with _explained(self._path):
            files.append_text(self._path, text)


def write_evaluation(path, step, metrics):
    """Adds the row of a step to a table. Drops existing rows of the same and later steps; new
    columns are allowed."""
    read = csv.DictReader(_whole_lines(path))
    rows = [row for row in read if row["step"].isdecimal() and int(row["step"]) < step]
    write_rows(path, [*rows, {"step": step, **metrics}])


def write_rows(path, rows):
    """Writes dicts as the rows of a table; a value that a row lacks is NaN."""
    columns = dict.fromkeys(name for row in rows for name in row)
    with _explained(path), files.atomic_write(path) as file:
        writer = csv.DictWriter(file, columns, restval="nan", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _explained(path):
    return files.explained_errors("The metrics cannot be written", DISK_ADVICE, path)


def read_metrics(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads a table of metrics, such as `metrics.csv` in a workdir.

    Args:
        path: the CSV file, local or remote.

    Returns:
        A dict from each column name to a float64 array `(rows,)`.

    Raises:
        ValueError: the file is missing or damaged.
    """
    try:
        names, *rows = csv.reader(_whole_lines(str(path)))
        columns = np.array(rows, np.float64).reshape(len(rows), len(names))
    except ValueError as error:
        raise ValueError(
            f"The table of metrics is missing or damaged ({error}). Received: path={path}"
        ) from error
    return dict(zip(names, columns.T))


def _line(numbers):
    """Returns a row, from which exactly the same numbers can be read."""
    return ",".join(repr(np.asarray(number).item()) for number in numbers) + "\n"


def _whole_lines(path):
    """Returns the lines of a file, without an incomplete last line; [] if the file does not
    exist."""
    if not files.exists(path):
        return []
    return [line for line in files.read_text(path).splitlines(keepends=True) if line.endswith("\n")]


class Scalars:
    """Writes scalars for `tensorboard --logdir FOLDER`. A resumed run may write some steps
    twice."""

    def __init__(self, folder):
        self._writer = tf.summary.create_file_writer(str(folder))

    def write(self, step, values):
        """Writes and flushes the values of one step; `values` is a dict with keys such as
        "train/loss"."""
        # This replaces `tf.summary.scalar`, which requires the tensorboard package.
        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR"
        )
        with self._writer.as_default(step):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
        self._writer.flush()

    def close(self):
        self._writer.close()
