"""All that a run reports about its steps: lines, tables and TensorBoard."""

import numpy as np

from keras_vit.training.metrics_table import MetricsTable
from keras_vit.training.progress import format_metrics, wrap
from keras_vit.training.tensorboard import Scalars


class MetricWriter:
    """Writes `metrics.csv`, a row per step, `evaluations.csv`, TensorBoard's scalars, and a line every so often.

    Args:
        workdir: the `Workdir`.
        counters: the `Counters` that training is resumed from.
        columns: the names of the metrics of a step.
        progress: the `Progress` that prints the lines.
        log_every_steps: steps from line to line.
        total_steps: of the whole run.
        test_examples: how many examples are evaluated.
        write: takes lines of text.
        enabled: False on the hosts that write nothing.
    """

    def __init__(
        self, workdir, counters, columns, progress, *, log_every_steps, total_steps, test_examples, write, enabled=True
    ):
        self._enabled = enabled
        if not enabled:
            return
        self._metrics = MetricsTable(workdir.path / "metrics.csv", (*columns, "bad_examples"), counters.step)
        # An evaluation that was interrupted comes again, and so does that of the last step.
        evaluated = min(counters.evaluated_step, total_steps - 1)
        self._evaluations = MetricsTable(workdir.path / "evaluations.csv", step=evaluated)
        self._scalars = Scalars(workdir.tensorboard)
        self._progress, self._write = progress, write
        self._total_steps, self._every = total_steps, log_every_steps
        self._test_examples = test_examples
        self._since_line = {name: [] for name in columns}
        self._input_wait = 0.0

    def write_steps(self, step, outputs, bad_counts):
        """Writes the metrics of the steps up to `step`, and a line where one is due.

        Args:
            step: number of the last of the steps, from 1.
            outputs: the `TrainOutputs` of these steps.
            bad_counts: how many examples of each of these steps could not be read.
        """
        if not self._enabled:
            return
        metrics = outputs.metrics
        self._metrics.append(step - len(metrics["loss"]) + 1, {**metrics, "bad_examples": bad_counts})
        for name, values in metrics.items():
            self._since_line[name].extend(values)
        self._input_wait += outputs.input_wait
        steps = len(self._since_line["loss"])
        if not steps or (step % self._every and step < self._total_steps):
            return
        means = {name: float(np.mean(values, dtype="float64")) for name, values in self._since_line.items()}
        means["learning_rate"] = float(self._since_line["learning_rate"][-1])
        self.flush()
        self._progress.report(step, steps, means, self._input_wait, outputs.peak_memory)
        self._scalars.write(step, {f"train/{name}": value for name, value in means.items()})
        self._since_line = {name: [] for name in metrics}
        self._input_wait = 0.0

    def flush(self):
        """Lets the tables have all rows; before the checkpoint of their last step is saved."""
        if self._enabled:
            self._metrics.flush()
            self._evaluations.flush()

    def write_evaluation(self, step, metrics):
        """Writes the metrics of an evaluation after `step` steps, a dict of floats."""
        if not self._enabled:
            return
        self._evaluations.append(step, {name: [value] for name, value in metrics.items()})
        self._scalars.write(step, {f"test/{name}": value for name, value in metrics.items()})
        shown = {name: value for name, value in metrics.items() if name not in ("examples", "bad_examples")}
        scored, total, bad = int(metrics["examples"]), self._test_examples, metrics["bad_examples"]
        count = f"{total:,}" if scored == total else f"{scored:,} of {total:,}"
        missing = f"; {bad:,} cannot be read" if bad else ""
        self._write(wrap(f"after step {step}: {format_metrics(shown)} of {count} test images{missing}"))

    def close(self):
        if self._enabled:
            self._metrics.close()
            self._evaluations.close()
            self._scalars.close()
