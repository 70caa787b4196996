"""The lines that say how training is going."""

import textwrap
import time

COLUMNS = 100  # of a line, at most
# Left out of lines that would be longer, in this order. The first two are in `metrics.csv`.
_OPTIONAL = ("learning rate", "gradient", "device", "memory")


class Progress:
    """Prints a line for each stretch of steps: metrics, speed and the time left.

    Waiting for input is named if it takes a tenth of the time.

    Args:
        total_steps: steps of the whole run.
        batch_size: images of a step, over all devices.
        devices: how many devices share a batch.
        write: takes a line of text.
        clock: gives seconds.
        start: when the command was given, by the clock; None for now.
    """

    def __init__(self, total_steps, batch_size, devices, write=print, clock=time.monotonic, start=None):
        self._total_steps, self._batch_size, self._devices = total_steps, batch_size, devices
        self._write, self._clock = write, clock
        self._start = self._training_start = clock()
        self._command_start = self._start if start is None else start
        self._reported_first = False

    def begin(self):
        """Notes that training begins now."""
        self._start = self._training_start = self._clock()

    def report_first(self, steps):
        """Prints, at its first call, how long it took from the command to the end of the first `steps` steps."""
        if self._reported_first:
            return
        self._reported_first = True
        before, took = self._training_start - self._command_start, self._clock() - self._training_start
        what = "step" if steps == 1 else f"{steps} steps"
        self._write(f"training began after {before:.1f} s; its first {what} took {took:.1f} s, compiling included")

    def exclude(self, seconds):
        """Does not count seconds in which there was no training."""
        self._start += seconds

    def report(self, step, steps, metrics, input_wait, peak_memory):
        """Prints the line of the last `steps` steps, up to number `step`."""
        now = self._clock()
        seconds, self._start = now - self._start, now
        speed = steps * self._batch_size / max(seconds, 1e-9)
        remaining = (self._total_steps - step) * self._batch_size / speed
        shown = {name: value for name, value in metrics.items() if name not in ("grad_norm", "learning_rate")}
        waiting = round(100 * input_wait / max(seconds, 1e-9))
        parts = {
            "step": f"step {step:{len(str(self._total_steps))}}/{self._total_steps}",
            "metrics": format_metrics(shown, separator="  ", percent="5.1f"),
            "learning rate": f"learning rate {metrics['learning_rate']:.1e}",
            "gradient": f"gradient {metrics['grad_norm']:.3g}",
            "memory": f"memory {peak_memory / 1e9:.1f} GB",
            "waiting": f"waiting for input {waiting} %" if waiting >= 10 else "",
            "speed": f"{speed:,.0f} images/s",
            "device": f"({speed / self._devices:,.0f} a device)" if self._devices > 1 else "",
            "time": f"{format_seconds(remaining)} left",
        }
        for name in _OPTIONAL:
            if len(_join(parts)) > COLUMNS:
                parts[name] = ""
        self._write(wrap(_join(parts)))


def format_metrics(metrics, separator=", ", percent=".2f"):
    """Metrics for people: accuracies in percent, counts of examples as they are, all others with four decimals."""

    def number(name, value):
        if name.endswith("examples"):
            return f"{value:,.0f}"
        return f"{100 * value:{percent}} %" if name.endswith("accuracy") else f"{value:.4f}"

    return separator.join(f"{name} {number(name, value)}" for name, value in metrics.items())


def format_seconds(seconds):
    """Seconds as `m:ss`, or `h:mm:ss` from an hour on."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def wrap(line):
    """A line as several of at most 100 columns, each but the first indented; long words stay whole."""
    indent = " " * (len(line) - len(line.lstrip())) + "    "
    return "\n".join(
        textwrap.wrap(line, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    )


def _join(parts):
    return "  ".join(text for text in parts.values() if text)
