"""The lines that tell how training goes."""

import time


class Progress:
    """Prints a line for each stretch of steps: loss, accuracy, images a second and the time left.

    Args:
        total_steps: steps of the whole run.
        batch_size: images of a step, over all replicas.
        write: takes a line of text.
        clock: gives seconds.
    """

    def __init__(self, total_steps, batch_size, write=print, clock=time.monotonic):
        self.total_steps = total_steps
        self.batch_size = batch_size
        self._write = write
        self._clock = clock
        self._since = clock()

    def report(self, step, steps, loss, accuracy):
        """Tells of the last `steps` steps, the last of which was number `step`; returns the seconds they took."""
        now = self._clock()
        seconds, self._since = now - self._since, now
        rate = steps * self.batch_size / max(seconds, 1e-9)
        left = (self.total_steps - step) * self.batch_size / rate
        width = len(str(self.total_steps))
        self._write(
            f"step {step:{width}}/{self.total_steps}  loss {loss:.4f}  accuracy {100 * accuracy:5.1f} %  "
            f"{rate:,.0f} images/s  {clock_time(left)} left"
        )
        return seconds


def clock_time(seconds):
    """Seconds as `m:ss`, or `h:mm:ss` from an hour on."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
