"""The lines that say how training is going."""

import time


class Progress:
    """Prints a line for each stretch of steps: metrics, speed and the time left.

    Args:
        total_steps: steps of the whole run.
        batch_size: images of a step, over all devices.
        devices: how many devices share a batch.
        write: takes a line of text.
        clock: gives seconds.
    """

    def __init__(self, total_steps, batch_size, devices, write=print, clock=time.monotonic):
        self._total_steps = total_steps
        self._batch_size = batch_size
        self._devices = devices
        self._write = write
        self._clock = clock
        self._start = clock()

    def exclude(self, seconds):
        """Does not count seconds in which there was no training."""
        self._start += seconds

    def report(self, step, steps, metrics, input_wait, peak_memory):
        """Prints the line of the last `steps` steps.

        Args:
            step: number of the last one, from 1.
            steps: how many.
            metrics: their means by name, with "grad_norm", and "learning_rate", which is that of the last step.
            input_wait: seconds in which the devices waited for input.
            peak_memory: bytes in use at the peak so far.
        """
        now = self._clock()
        seconds, self._start = now - self._start, now
        speed = steps * self._batch_size / max(seconds, 1e-9)
        remaining = (self._total_steps - step) * self._batch_size / speed
        per_device = f" ({speed / self._devices:,.0f} a device)" if self._devices > 1 else ""
        shown = {name: value for name, value in metrics.items() if name not in ("grad_norm", "learning_rate")}
        parts = [
            f"step {step:{len(str(self._total_steps))}}/{self._total_steps}",
            format_metrics(shown, separator="  ", percent="5.1f"),
            f"rate {metrics['learning_rate']:.2e}",
            f"gradient {metrics['grad_norm']:.3g}",
            f"waiting for input {100 * input_wait / max(seconds, 1e-9):.0f} %",
            f"memory {peak_memory / 1e9:.1f} GB",
            f"{speed:,.0f} images/s{per_device}",
            f"{format_seconds(remaining)} left",
        ]
        self._write("  ".join(parts))


def format_metrics(metrics, separator=", ", percent=".2f"):
    """Metrics for people: accuracies in percent, counts of examples as they are, all others with four decimals.

    Args:
        metrics: floats by name.
        separator: stands between two of them.
        percent: the format of a percentage.
    """

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
