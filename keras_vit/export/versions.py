"""Folders of versions, as a server watches them: `<base_dir>/<integer>`, where the largest is served."""

import errno
import os
import shutil
import tempfile

import tensorflow as tf

MARKER = "saved_model.pb"  # without it a folder is no SavedModel


def check_version(base_dir, version):
    """Raises a `ValueError` unless `version` is None or a positive integer that is free."""
    if version is None:
        return
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ValueError(f"`version` must be an integer of 1 or more. Received: version={version!r}")
    target = os.path.join(base_dir, str(version))
    if tf.io.gfile.exists(target):
        raise ValueError(f"An exported version is never overwritten. Received: {target}, which exists")


def next_version(base_dir):
    """The number after the largest there is, 1 where there is none."""
    if not tf.io.gfile.exists(base_dir):
        return 1
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(base_dir)]
    return max([int(name) for name in names if name.isdecimal()], default=0) + 1


class Staged:
    """A version that gets its name when it is finished; a context manager that gives a local folder to write in.

    Left with an error, the folder is removed, unless the error says that it is to be looked at.

    Args:
        base_dir: any path of `tf.io.gfile`; made if it is not there.
        version: a positive integer that is free, or None for the next free one.
        kept_after: exceptions after which the folder stays.

    Attributes:
        path: of the version, once it has its name.

    Raises:
        ValueError: the folder cannot be written, or the version exists by now.
    """

    def __init__(self, base_dir, version, kept_after=()):
        self._base_dir, self._version, self._kept_after = base_dir, version, kept_after
        self.path = None

    def __enter__(self):
        # A server takes the largest number it sees in the folder: what is not finished must not be a number.
        beside = None
        if not _is_remote(self._base_dir):
            beside = self._base_dir
            try:
                os.makedirs(beside, exist_ok=True)
            except OSError as error:
                raise ValueError(
                    f"The folder of the versions must be one that can be written ({error.strerror}). Received: {beside}"
                ) from error
        self._folder = tempfile.mkdtemp(prefix="partial-", dir=beside)
        return self._folder

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.path = self._publish()
        finally:
            if kind is None or not issubclass(kind, self._kept_after):
                shutil.rmtree(self._folder, ignore_errors=True)

    def _publish(self):
        while True:
            target = os.path.join(self._base_dir, str(self._version or next_version(self._base_dir)))
            check_version(self._base_dir, self._version)
            if _is_remote(self._base_dir):
                _copy(self._folder, target)
                return target
            try:
                os.chmod(self._folder, 0o755)  # mkdtemp's is for its owner alone, and a server is another user
                os.rename(self._folder, target)
                return target
            except OSError as error:
                # Another export took the number in between.
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise


def _copy(folder, target):
    files = [os.path.relpath(os.path.join(root, name), folder) for root, _, names in os.walk(folder) for name in names]
    for file in sorted(files, key=lambda file: (file == MARKER, file)):
        path = f"{target}/{file}"
        tf.io.gfile.makedirs(os.path.dirname(path))
        tf.io.gfile.copy(os.path.join(folder, file), path)


def _is_remote(path):
    return "://" in path
