"""One run at a time in a workdir."""

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid

from keras_vit import files

log = logging.getLogger(__name__)

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

# A remote lock is written anew every so many seconds, and is stale once it is as old as the second number.
REFRESH_SECONDS = 20
STALE_SECONDS = 90
# Seconds from writing a remote lock to reading it again: longer than another start takes from reading to writing.
SETTLE_SECONDS = 2


@contextlib.contextmanager
def workdir_lock(workdir):
    """While it is open, no other run can open it for the same folder.

    A local file is locked by the operating system, which releases it when the process ends, however it ends; a file
    system that has no locks locks nothing. A remote file says who holds it and when that was last confirmed: one that
    was not confirmed for `STALE_SECONDS`, or whose process of this host has ended, is taken over. An object store has
    no lock that is asked for and taken at once: of two runs that start together, both write their token, and the one
    whose token is there after `SETTLE_SECONDS` goes on.

    Args:
        workdir: the folder, local or remote, which exists.

    Raises:
        ValueError: another run holds it.
    """
    path = files.as_path(workdir) / "lock"
    hold = _hold_remote if files.is_remote(path) else _hold_local
    with hold(path, workdir):
        yield


@contextlib.contextmanager
def _hold_local(path, workdir):
    with open(path, "a+", encoding="utf-8", errors="replace") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise _refusal(_holder(file.read()), workdir) from None
            except OSError:
                pass  # this file system has no locks
        file.truncate(0)
        file.write(json.dumps(_this_process()))
        file.flush()
        try:
            yield
        finally:
            # The file stays: a process that has opened it already would lock one that nobody else finds.
            file.truncate(0)


@contextlib.contextmanager
def _hold_remote(path, workdir):
    holder = _read(path)
    if holder and not _is_stale(holder):
        raise _refusal(holder, workdir)
    token = uuid.uuid4().hex
    files.write_json(path, {**_this_process(), "token": token})
    time.sleep(SETTLE_SECONDS)
    holder = _read(path)
    if holder.get("token") != token:
        raise _refusal(holder, workdir)
    end = threading.Event()

    def refresh():
        while not end.wait(REFRESH_SECONDS):
            with contextlib.suppress(OSError):  # the next one may work
                if _read(path).get("token", token) != token:
                    log.error("another run has taken over the workdir %s; stop one of them", workdir)
                    return
                files.write_json(path, {**_this_process(), "token": token})

    thread = threading.Thread(target=refresh, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        with contextlib.suppress(OSError):
            if _read(path).get("token") == token:
                files.remove(path)


def _read(path):
    try:
        return _holder(files.read_text(path)) if files.exists(path) else {}
    except UnicodeDecodeError:
        return {}


def _this_process():
    return {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()}


def _holder(text):
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError, RecursionError):
        return {}


def _is_stale(holder):
    written = holder.get("time")
    if not isinstance(written, int | float) or abs(time.time() - written) > STALE_SECONDS:
        return True
    if holder.get("host") != socket.gethostname():
        return False
    if holder.get("pid") == os.getpid():  # of a container that was killed: the first process of each has number 1
        return True
    try:
        os.kill(int(holder["pid"]), 0)
    except (ProcessLookupError, KeyError, TypeError, ValueError, OverflowError):
        return True
    except PermissionError:  # it lives, and is somebody else's
        return False
    return False


def _refusal(holder, workdir):
    who = f"process {holder.get('pid', 'unknown')} on {holder.get('host', 'an unknown host')}"
    return ValueError(
        f"Another run is at work in this workdir: {who}. Wait for its end, stop it, or choose another workdir. "
        f"Received: workdir={workdir}"
    )
