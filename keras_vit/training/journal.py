"""All that a run tells about its steps: lines, tables and TensorBoard."""

import numpy as np

from keras_vit.training.metrics_log import MetricsLog, Scalars
from keras_vit.training.progress import Progress
from keras_vit.training.step import METRICS

EVALUATION = ("loss", "accuracy")


class Journal:
    """Writes `metrics.csv`, a row a step, `evaluations.csv`, TensorBoard's scalars, and a line every so often.

    Args:
        workdir: the `Workdir`.
        step: the step that training goes on from.
        total_steps, batch_size, devices, write: see `Progress`.
        log_every_steps: steps from line to line.
        test_examples: how many are evaluated.
    """

    def __init__(self, workdir, step, *, total_steps, batch_size, devices, log_every_steps, test_examples, write):
        self._metrics = MetricsLog(workdir.path / "metrics.csv", METRICS, step)
        # The last evaluation comes after the last checkpoint, every other one before that of its step.
        evaluated = min(step, total_steps - 1)
        self._evaluations = MetricsLog(workdir.path / "evaluations.csv", EVALUATION, evaluated)
        self._scalars = Scalars(workdir.tensorboard)
        self._progress = Progress(total_steps, batch_size, devices, write=write)
        self._total_steps, self._every, self._write = total_steps, log_every_steps, write
        self._test_examples = test_examples
        self._rows, self._waited = [], 0.0

    def add(self, step, rows, waited):
        """Takes what `train_steps` gave for the steps up to `step`; returns the seconds of a stretch that it ends.

        The rows are in the table when it returns.
        """
        self._metrics.append(step - len(rows) + 1, rows)
        self._rows.extend(rows)
        self._waited += waited
        if not self._rows or (step % self._every and step < self._total_steps):
            return 0.0
        means = dict(zip(METRICS, np.mean(self._rows, axis=0, dtype="float64").tolist()))
        means["learning_rate"] = float(self._rows[-1][METRICS.index("learning_rate")])
        seconds = self._progress.report(step, len(self._rows), waited=self._waited, **means)
        self._scalars.write(step, {f"train/{name}": value for name, value in means.items()})
        self._rows, self._waited = [], 0.0
        return seconds

    def evaluated(self, step, loss, accuracy, seconds=0.0):
        """Tells of an evaluation after `step` steps, which took some seconds."""
        self._progress.leave_out(seconds)
        self._evaluations.append(step, [(loss, accuracy)])
        self._scalars.write(step, {"test/loss": loss, "test/accuracy": accuracy})
        examples = f"{self._test_examples:,} test images"
        self._write(f"after step {step}: loss {loss:.4f}, accuracy {100 * accuracy:.2f} % of {examples}")

    def close(self):
        self._metrics.close()
        self._evaluations.close()
        self._scalars.close()


class Silence:
    """What the workers write that write nothing; the methods are `Journal`'s."""

    def add(self, step, rows, waited):
        return 0.0

    def evaluated(self, step, loss, accuracy, seconds=0.0):
        pass

    def close(self):
        pass
