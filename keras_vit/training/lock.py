"""Locks the folder of a run."""

import contextlib
import os
import socket

from keras_vit import files

try:
    import fcntl
except ImportError:  # on Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def workdir_lock(folder):
    """Locks a folder, so that only one process can use it at a time.

    Does not lock remote folders, folders on Windows, or folders on file systems without locks.
    """
    if fcntl is None or files.is_remote(folder):
        yield
        return
    path = files.as_path(folder) / "lock"
    with open(path, "a+", encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A run that was refused may have removed the file after it was opened here.
            is_free = path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))
        except BlockingIOError:
            is_free = False
        except OSError:
            is_free = True  # the file system does not support locks
        if not is_free:
            file.seek(0)
            raise ValueError(
                f"Another run is using this workdir: {file.read() or 'an unknown process'}. Wait "
                f"for it to finish, stop it, or choose another workdir. Received: workdir={folder}"
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            # The file stays: a process that has opened it would otherwise be refused.
            file.truncate(0)
