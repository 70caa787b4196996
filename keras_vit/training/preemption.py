"""Handles stop signals, such as a preemption notice, so that a run is saved before the process exits."""

import contextlib
import os
import signal
import threading
import types

EXIT_CODE = 75
"""The exit code of a run that was stopped and saved (EX_TEMPFAIL in sysexits.h); the same command resumes it. A run
that is killed before it can save exits with 143 or 137 instead."""

_STOP_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]


class Preempted(Exception):
    """Raised if a signal stopped a run before its end; the run is saved and can be resumed."""

    exit_code = EXIT_CODE  # exit code of a command that ends with this error
    resumable = True


@contextlib.contextmanager
def raise_on_stop_signals(doing):
    """Returns a context in which stop signals raise `Preempted`; used after the last checkpoint is saved."""

    def stop(signum, frame):
        name = signal.Signals(signum).name
        raise Preempted(f"stopped by {name} during {doing}; training is saved; run the same command to resume")

    with handlers(stop):
        yield


@contextlib.contextmanager
def catch_stop_signals():
    """Yields an object that stores a signal's name in `signal`; a later Ctrl-C raises `KeyboardInterrupt`."""
    request = types.SimpleNamespace(signal="")

    def note(signum, frame):
        if request.signal and signum == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = signal.Signals(signum).name
        if signum == signal.SIGINT:
            with contextlib.suppress(OSError):  # `os.write` is unbuffered: the signal may interrupt a print
                os.write(2, b"\nsaving after the current steps; Ctrl-C again exits at once without saving\n")

    with handlers(note):
        yield request


@contextlib.contextmanager
def handlers(handler):
    """Installs a handler for all stop signals that are not ignored; has no effect outside the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    signals = [number for number in _STOP_SIGNALS if is_main and signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
