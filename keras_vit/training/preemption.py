"""Handles stop signals, such as a preemption notice, so that a run is saved before the process
exits."""

import contextlib
import os
import signal
import socket
import sys
import threading
import types

EXIT_CODE = 75
"""The exit code of a run that was stopped and saved (EX_TEMPFAIL in sysexits.h); the same command
resumes it. A run that is killed before it can save exits with 143 or 137 instead."""

_STOP_SIGNALS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
]
# Seconds that the main thread has to end after a second Ctrl-C before a thread ends the process.
_UNWIND_SECONDS = 1


class Preempted(Exception):
    """Raised if a signal stopped a run before its end; the run is saved and can be resumed."""

    exit_code = EXIT_CODE  # exit code of a command that ends with this error
    resumable = True


def raise_on_stop_signals(activity):
    """Returns a context in which stop signals raise `Preempted`, for use after the last checkpoint
    is saved. The message names the activity, such as "the export"."""

    def stop(name):
        raise Preempted(
            f"stopped by {name} during {activity}; training is saved; run the same command to "
            "resume"
        )

    return _handling_stop_signals(f"stopping {activity}; Ctrl-C again exits at once", stop)


@contextlib.contextmanager
def catch_stop_signals():
    """Yields an object that stores a signal's name in `signal`; a later Ctrl-C ends the process
    without saving."""
    request = types.SimpleNamespace(signal="")

    def note(name):
        request.signal = name

    message = "saving after the current steps; Ctrl-C again exits at once without saving"
    with _handling_stop_signals(message, note):
        yield request


@contextlib.contextmanager
def _handling_stop_signals(message, stop):
    """Calls `stop(name)` on the first stop signal, as soon as the main thread runs Python code.

    A thread prints `message` at once. A later Ctrl-C raises `KeyboardInterrupt`. If the main thread
    cannot raise it, because it waits for a device, the thread ends the process.
    """
    received = []

    def handle(number, frame):
        received.append(number)
        if len(received) == 1:
            stop(signal.Signals(number).name)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    with handlers(handle) as caught, _announced(caught, message):
        yield


@contextlib.contextmanager
def _announced(caught, message):
    """Watches the signals in `caught` from a thread. Python writes their numbers to a socket when
    they arrive."""
    if not caught:
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    ended = threading.Event()

    def watch():
        first = True
        while data := reader.recv(1):
            if data[0] not in caught:
                continue
            if first:
                _print(f"{signal.Signals(data[0]).name}: {message}")
            # An interactive interpreter, which has `sys.ps1`, goes on after a Ctrl-C.
            elif (
                data[0] == signal.SIGINT
                and not hasattr(sys, "ps1")
                and not ended.wait(_UNWIND_SECONDS)
            ):
                _print("interrupted; files that were already saved are unchanged")
                os._exit(128 + signal.SIGINT)
            first = False

    thread = threading.Thread(target=watch, name="signals", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        writer.close()
        thread.join()
        reader.close()


def _print(line):
    # `print` could wait for the main thread, which locks the stream while it writes.
    with contextlib.suppress(OSError):
        os.write(2, f"\n{line}\n".encode())


@contextlib.contextmanager
def handlers(handler):
    """Installs a handler for all stop signals that are not ignored, and yields them; none outside
    the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    signals = [
        number for number in _STOP_SIGNALS if is_main and signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield tuple(before)
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
