"""Formats the log lines of a run: a summary of its config and cost, and the progress of
training."""

import math
import textwrap
import time

from keras_vit import cost
from keras_vit.models.freezing import frozen_weights
from keras_vit.training.config_changes import default_fields, flat

COLUMNS = 100  # maximum line length


def run_summary(config, task, engine, inputs, total_steps):
    """Returns the first lines of a run's log. The engine must be built."""
    model = engine.model
    num_images = total_steps * config.batch_size
    num_examples = inputs.train.num_examples
    trained = ""
    if frozen_weights(model):
        number = sum(math.prod(weight.shape) for weight in model.trainable_variables)
        trained = f" ({number:,} trained)"
    lines = [
        "config fields that differ from the defaults (config.json has all fields):",
        *_changed_fields(config),
        data_summary(inputs),
        inputs.summary(),
        f"{engine.description}: {engine.num_devices} x {config.batch_size // engine.num_devices} "
        f"images per step, {config.precision}, {model.count_params():,} parameters{trained}, "
        f"{total_steps} steps on {num_examples:,} images ({num_images / num_examples:.4g} epochs)",
    ]
    try:
        total = cost.exaflops(cost.multiply_accumulates(model, table_6=True), num_images)
        lines.append(f"{cost.flops(model) / 1e9:.4g} GFLOPs per image, forward pass")
        if len(task.variants) == 1:  # otherwise the cost of a step depends on its variant
            lines.append(
                f"{total:.3g} exaFLOPs for the whole run, counted as in the paper's Table 6"
            )
    except ValueError:
        pass  # the model has layers whose cost is unknown
    return [wrap(line) for line in lines]


def _changed_fields(config):
    """Returns one line for each group of a config, with the fields that differ from their
    defaults."""
    defaults = flat(default_fields(config))
    groups = {"run": []}
    for name, value in flat(config.to_dict()).items():
        if name not in defaults or value != defaults[name]:
            group, _, field = name.rpartition(".")
            groups.setdefault(group or "run", []).append(f"{field}={value!r}")
    return [f"  {group}: {' '.join(fields)}" for group, fields in groups.items() if fields]


def data_summary(inputs, max_names=10):
    """Returns a line such as "2 classes (cat 9, dog 8), 17 training and 5 test images"."""
    counts = f"{inputs.train.num_examples:,} training and {inputs.test.num_examples:,} test images"
    return ", ".join(filter(None, [inputs.train_target.summary(max_names), counts]))


class Progress:
    """Prints metrics, speed and remaining time during training.

    `write(line)` prints a line, `clock()` returns seconds, and `start` is its value at the start of
    the command. `write` and `total_steps` are also attributes.
    """

    def __init__(
        self, total_steps, batch_size, devices, write=print, clock=time.monotonic, start=0.0
    ):
        self.total_steps = total_steps
        self._batch_size = batch_size
        self._devices = devices
        self.write = write
        self._clock = clock
        self._command_start = start
        self.begin()
        self._reported_first = False

    def begin(self):
        self._start = self._training_start = self._clock()

    def report_first(self, steps):
        """Prints the startup time and the duration of the first `steps` steps; later calls do
        nothing."""
        if self._reported_first:
            return
        self._reported_first = True
        before = self._training_start - self._command_start
        took = self._clock() - self._training_start
        what = "step" if steps == 1 else f"{steps} steps"
        self.write(
            f"training began after {before:.1f} s; the first {what} took {took:.1f} s, including "
            "compilation"
        )

    def exclude(self, seconds):
        """Excludes time spent on other work, such as an evaluation, from the measured speed."""
        self._start += seconds

    def report(self, step, steps, metrics, input_wait, peak_memory, skipped=0):
        """Prints the log line after step `step`, with the speed of the last `steps` steps."""
        now = self._clock()
        seconds = max(now - self._start, 1e-9)
        self._start = now
        speed = steps * self._batch_size / seconds
        remaining = (self.total_steps - step) * self._batch_size / speed
        hidden = ("grad_norm", "learning_rate")
        shown = {name: value for name, value in metrics.items() if name not in hidden}
        parts = [
            f"step {step:{len(str(self.total_steps))}}/{self.total_steps}",
            format_metrics(shown, separator="  ", percent="5.1f"),
            f"grad {metrics['grad_norm']:.2g}",
            f"{skipped} of {steps} steps skipped" if skipped else "",
            f"mem {peak_memory / 1e9:.1f} GB" if peak_memory else "",
            f"waiting for input {100 * input_wait / seconds:.0f} %"
            if input_wait >= 0.1 * seconds
            else "",
            f"{speed:,.0f} images/s",
            f"({speed / self._devices:,.0f} per device)" if self._devices > 1 else "",
            f"{format_seconds(remaining)} left",
        ]
        self.write(wrap("  ".join(filter(None, parts))))


def format_metrics(metrics, separator=", ", percent=".2f"):
    """Formats metrics: accuracies in percent, example counts as integers, others with four
    decimals."""

    def number(name, value):
        if name.endswith("examples"):
            return f"{value:,.0f}"
        return f"{100 * value:{percent}} %" if name.endswith("accuracy") else f"{value:.4f}"

    return separator.join(f"{name} {number(name, value)}" for name, value in metrics.items())


def metrics_of_test(results):
    """Returns the metrics of the test split from the results of a run, without their prefix."""
    return {
        name.removeprefix("test/"): value
        for name, value in results.items()
        if name.startswith("test/")
    }


def format_seconds(seconds):
    """Formats seconds as `m:ss`, or as `h:mm:ss` for one hour or more."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def wrap(line):
    """Wraps a line at 100 columns with a hanging indent; long words are not broken."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    options = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(line, COLUMNS, **options)
