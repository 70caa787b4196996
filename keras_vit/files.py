"""Functions for local and remote files (such as "gs://bucket/file"), atomic writes, and child
processes.

Paths that contain "://" use `tf.io.gfile`; TensorFlow is imported only for these paths. Failed
operations on local and on remote files raise an `OSError`.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid

from keras_vit.terminal import first_line

_PART = re.compile(r"\.[0-9a-f]{12}\.part(\.|$)")  # matches the temporary names of `atomic_path`


class RemotePath(str):
    """A remote path that supports `/`; `pathlib.Path` would turn "://" into ":/"."""

    def __truediv__(self, name):
        return RemotePath(f"{self}/{name}")


def as_path(path):
    """Returns a path that supports `/`: a `pathlib.Path` if it is local, else a `RemotePath`."""
    return RemotePath(str(path).rstrip("/")) if is_remote(path) else pathlib.Path(path)


def is_remote(path):
    return "://" in str(path)


def exists(path):
    """Returns True if the file or folder exists; raises an `OSError` if the check fails."""
    if is_remote(path):
        return _gfile("exists", path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.stat(path)
        return True
    return False


def is_dir(path):
    return _gfile("isdir", path) if is_remote(path) else os.path.isdir(path)


def list_dir(path):
    """Returns the sorted names of the files and folders in a folder, without trailing slashes."""
    names = _gfile("listdir", path) if is_remote(path) else os.listdir(path)
    return sorted(name.rstrip("/") for name in names)


def make_dirs(path):
    """Creates a folder and its parents, unless they exist."""
    _gfile("makedirs", path) if is_remote(path) else os.makedirs(path, exist_ok=True)


def remove(path):
    _gfile("remove", path) if is_remote(path) else os.remove(path)


def remove_tree(path):
    _gfile("rmtree", path) if is_remote(path) else shutil.rmtree(path)


def copy(source, target):
    """Copies a file, replacing `target` if it exists."""
    with atomic_path(target) as temporary:
        if is_remote(source) or is_remote(temporary):
            _gfile("copy", source, str(temporary), overwrite=True)
        else:
            shutil.copyfile(source, temporary)


def read_text(path):
    """Returns the text of a UTF-8 file."""
    with _opened(path, "r") as file:
        return file.read()


def append_text(path, text):
    """Appends text to a UTF-8 file."""
    with _opened(path, "a") as file:
        file.write(text)


@contextlib.contextmanager
def atomic_path(path, ending=None):
    """Yields a temporary path next to `path`. At the end, renames that file to `path`, or removes
    it after an error.

    The temporary path has the same `ending`, by which libraries choose a file format; by default
    the part after the last dot.
    """
    folder, name = os.path.split(str(path))
    if ending is None:
        ending = os.path.splitext(name)[1]
    stem = name.removesuffix(ending)
    temporary = os.path.join(folder, f"{stem}.{uuid.uuid4().hex[:12]}.part{ending}")
    try:
        yield temporary
        if is_remote(path):
            _gfile("rename", temporary, str(path), overwrite=True)
        else:
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            if exists(temporary):
                remove(temporary)
        raise


@contextlib.contextmanager
def atomic_write(path, mode="w"):
    """Yields a file, opened with mode "w" (UTF-8) or "wb", that replaces `path` at the end; see
    `atomic_path`."""
    with atomic_path(path) as temporary, _opened(temporary, mode) as file:
        yield file


@contextlib.contextmanager
def staging_dir(parent, kept_after=()):
    """Yields a new local folder. Removes it at the end unless it was renamed or a `kept_after`
    error was raised."""
    folder = tempfile.mkdtemp(prefix="partial-", dir=parent)
    os.chmod(folder, 0o755)  # mkdtemp grants access only to the owner
    try:
        yield folder
    except BaseException as error:
        if not isinstance(error, kept_after):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folder, older_than_seconds):
    """Removes temporary files of killed processes from a local folder if they are older than
    `older_than_seconds`."""
    for file in pathlib.Path(folder).iterdir():
        # Another process may rename or remove the file first.
        with contextlib.suppress(FileNotFoundError):
            if _PART.search(file.name) and time.time() - file.stat().st_mtime > older_than_seconds:
                file.unlink()


@contextlib.contextmanager
def explained_errors(problem, advice, received):
    """Converts an `OSError` to a `ValueError` with the problem, the reason, the advice and the
    received value."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{problem} ({first_line(error.strerror or error)}). {advice} Received: {received}"
        ) from error


def read_json(path):
    """Returns the content of a JSON file, or None if there is no file; raises a `ValueError` for
    invalid JSON."""
    if not exists(path):
        return None
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The file must be JSON in UTF-8 ({error}). Received: {path}") from error


def write_json(path, content):
    """Atomically writes indented JSON with sorted keys. NaN and infinity become null, because JSON
    lacks them."""
    finite = json.loads(json.dumps(content), parse_constant=lambda name: None)
    with atomic_write(path) as file:
        file.write(json.dumps(finite, indent=2, sort_keys=True) + "\n")


def run_python(arguments, **environment):
    """Runs Python in a child process with extra environment variables; returns the last line of its
    standard output."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, **environment}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    output, errors = (text.strip().splitlines() for text in (child.stdout, child.stderr))
    if child.returncode:
        raise ChildProcessError(
            errors[-1] if errors else f"the process exited with code {child.returncode}"
        )
    return output[-1] if output else ""


@contextlib.contextmanager
def _opened(path, mode):
    if is_remote(path):
        with _as_os_error(), _gfile("GFile", path, mode) as file:
            yield file
    else:
        with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file


def _gfile(function, *arguments, **options):
    import tensorflow as tf

    with _as_os_error():
        return getattr(tf.io.gfile, function)(*map(str, arguments), **options)


@contextlib.contextmanager
def _as_os_error():
    import tensorflow as tf

    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(error.message) from error
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
