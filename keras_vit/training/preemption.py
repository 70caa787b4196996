"""Ending early, with everything saved, when the machine is about to be taken away."""

import contextlib
import os
import signal
import threading
import types

EXIT_CODE = 75
"""The exit code of a run that was stopped and saved, "try again" in sysexits.h: the same command goes on. A run that
was killed unsaved ends with 143 or 137 instead."""

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Preempted(Exception):
    """A run was asked to end before its last step, and is saved."""

    exit_code = EXIT_CODE  # of a command that ends with it
    resumable = True


@contextlib.contextmanager
def raise_on_stop_signals(doing):
    """While it is open, SIGTERM, SIGHUP and Ctrl-C raise `Preempted`. For what follows the last checkpoint of a run."""

    def stop(signum, frame):
        name = signal.Signals(signum).name
        raise Preempted(f"stopped by {name} during {doing}; training is saved, and the same command continues")

    with _handlers(stop):
        yield


@contextlib.contextmanager
def catch_stop_signals():
    """Yields an object whose `signal` names the stop signal that came, such as "SIGTERM"; a second Ctrl-C raises."""
    request = types.SimpleNamespace(signal="")

    def note(signum, frame):
        if request.signal and signum == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = signal.Signals(signum).name
        if signum == signal.SIGINT:
            with contextlib.suppress(OSError):  # straight to standard error, which may be in the middle of a line
                os.write(2, b"\nsaving after the steps in progress; Ctrl-C again ends at once, unsaved\n")

    with _handlers(note):
        yield request


@contextlib.contextmanager
def _handlers(handler):
    """Installs a handler of the stop signals that are not ignored, if this is the main thread: others may not."""
    is_main = threading.current_thread() is threading.main_thread()
    signals = [number for number in _STOP_SIGNALS if is_main and signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
