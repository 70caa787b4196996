"""Ending early, with everything saved, when the machine is about to be taken away."""

import contextlib
import signal
import threading

# "Try again" in sysexits.h: the same command goes on. A run that was killed unsaved ends with 143 or 137 instead.
EXIT_CODE = 75


class Preempted(Exception):
    """A run was asked to end before its last step, and is saved."""


class StopRequest:
    """Whether this process was asked to stop.

    Attributes:
        received: whether SIGTERM came.
    """

    received = False


@contextlib.contextmanager
def catch_sigterm():
    """While it is open, SIGTERM does not end the process; the `StopRequest` that it yields notes it."""
    request = StopRequest()

    def note(signum, frame):
        request.received = True

    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may install signal handlers
        return
    before = signal.signal(signal.SIGTERM, note)
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, before)
