"""Ending early, with everything saved, when the machine is about to be taken away."""

import contextlib
import signal
import threading

# Of sysexits.h, "try again": the same command goes on. A run that was killed unsaved ends with 143 or 137 instead.
EXIT_CODE = 75


class Interrupted(Exception):
    """A run was asked to end before its last step, and is saved."""


class Request:
    """Attributes:
    made: whether SIGTERM came.
    """

    made = False


@contextlib.contextmanager
def watching():
    """While it is open, SIGTERM ends nothing and is noted in the `Request` that it gives."""
    request = Request()

    def note(signum, frame):
        request.made = True

    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may ask for signals
        return
    before = signal.signal(signal.SIGTERM, note)
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, before)
