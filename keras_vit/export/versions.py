"""Folders of versions, as a server watches them: `<base_dir>/<integer>`, where the largest is served."""

import contextlib
import errno
import os

import tensorflow as tf

from keras_vit import files

MARKER = "saved_model.pb"  # a folder without it is not a SavedModel


def check_version(base_dir, version):
    """Raises a `ValueError` unless `version` is None or a positive integer that no version has yet."""
    if version is None:
        return
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ValueError(f"`version` must be an integer of 1 or more. Received: version={version!r}")
    target = os.path.join(base_dir, str(version))
    if files.exists(target):
        raise ValueError(f"An exported version is never overwritten. Received: {target}, which exists")


def next_version(base_dir):
    """The number after the largest version there is, 1 if there is none."""
    return max(_versions(base_dir), default=0) + 1


def newest_version(base_dir: str | os.PathLike) -> str | None:
    """Returns the path of the largest version in a folder, None if there is none.

    Args:
        base_dir: the folder of the versions, any path of `tf.io.gfile`.
    """
    number = max(_versions(base_dir), default=None)
    return None if number is None else os.path.join(str(base_dir), str(number))


def _versions(base_dir):
    return [int(name) for name in files.list_dir(base_dir) if name.isdecimal()] if files.exists(base_dir) else []


@contextlib.contextmanager
def staging_dir(base_dir, kept_after=()):
    """Yields a local folder to write a version in, for `publish`; without that it is removed. See `files.staging_dir`.

    It is not called by a number: a server would serve the largest number in `base_dir` whether it is complete or not.

    Args:
        base_dir: the folder of the versions, any path of `tf.io.gfile`; created if it does not exist.
        kept_after: exception types after which the folder stays, to be examined.

    Raises:
        ValueError: `base_dir` cannot be created.
    """
    if not files.is_remote(base_dir):
        try:
            os.makedirs(base_dir, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"The folder of the versions must be one that can be written ({error.strerror}). Received: {base_dir}"
            ) from error
    with files.staging_dir(None if files.is_remote(base_dir) else base_dir, kept_after) as folder:
        yield folder


def publish(folder, base_dir, version):
    """Makes a complete folder a version: renames it, or where there is no rename copies it, the marker last.

    Args:
        folder: the folder that `staging_dir` gave.
        base_dir: the folder of the versions.
        version: a positive integer that no version has yet, or None for the next one.

    Returns:
        The path of the version.

    Raises:
        ValueError: the version exists by now.
    """
    while True:
        target = os.path.join(base_dir, str(version or next_version(base_dir)))
        check_version(base_dir, version)
        if files.is_remote(base_dir):
            _copy_with_marker_last(folder, target)
            return target
        try:
            os.rename(folder, target)
            return target
        except OSError as error:
            # Another export published this number in between: take the next one.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise


def _copy_with_marker_last(folder, target):
    names = [os.path.relpath(os.path.join(root, name), folder) for root, _, names in os.walk(folder) for name in names]
    for name in sorted(names, key=lambda name: (name == MARKER, name)):
        path = f"{target}/{name}"
        files.make_dirs(os.path.dirname(path))
        # Not `files.copy`, which would rename each file: on an object store a second copy, and the marker is enough.
        tf.io.gfile.copy(os.path.join(folder, name), path)
