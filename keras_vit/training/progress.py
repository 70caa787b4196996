"""The lines that tell how training goes."""

import resource
import time

import tensorflow as tf


def memory_in_use():
    """Bytes at the peak so far: of the first GPU where there is one, else of this process."""
    if tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB


class Progress:
    """Prints a line for each stretch of steps: how training goes, how fast, and the time left.

    Args:
        total_steps: steps of the whole run.
        batch_size: images of a step, over all devices.
        devices: how many devices share a batch.
        write: takes a line of text.
        clock: gives seconds.
        memory: gives bytes.
    """

    def __init__(self, total_steps, batch_size, devices=1, write=print, clock=time.monotonic, memory=memory_in_use):
        self.total_steps = total_steps
        self.batch_size = batch_size
        self.devices = devices
        self._write = write
        self._clock = clock
        self._memory = memory
        self._since = clock()

    def leave_out(self, seconds):
        """Does not count seconds in which there was no training."""
        self._since += seconds

    def report(self, step, steps, loss, accuracy, learning_rate=None, grad_norm=None, waited=None):
        """Tells of the last `steps` steps.

        Args:
            step: number of the last one, from 1.
            steps: how many.
            loss, accuracy: their means.
            learning_rate: of the last step.
            grad_norm: mean of the gradient's norm before clipping.
            waited: seconds in which the devices waited for input.

        Returns:
            The seconds that the stretch took.
        """
        now = self._clock()
        seconds, self._since = now - self._since, now
        speed = steps * self.batch_size / max(seconds, 1e-9)
        left = (self.total_steps - step) * self.batch_size / speed
        parts = [
            f"step {step:{len(str(self.total_steps))}}/{self.total_steps}",
            f"loss {loss:.4f}",
            f"accuracy {100 * accuracy:5.1f} %",
        ]
        if learning_rate is not None:
            parts.append(f"rate {learning_rate:.2e}")
        if grad_norm is not None:
            parts.append(f"gradient {grad_norm:.3g}")
        if waited is not None:
            parts.append(f"waiting for input {100 * waited / max(seconds, 1e-9):.0f} %")
        parts.append(f"memory {self._memory() / 1e9:.1f} GB")
        each = f" ({speed / self.devices:,.0f} a device)" if self.devices > 1 else ""
        parts.append(f"{speed:,.0f} images/s{each}")
        parts.append(f"{clock_time(left)} left")
        self._write("  ".join(parts))
        return seconds


def clock_time(seconds):
    """Seconds as `m:ss`, or `h:mm:ss` from an hour on."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
