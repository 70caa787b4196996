"""Lists image files, and makes sources of them."""

import functools
import logging
import os
import posixpath
import unicodedata
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.source import Source, checksum_of, label_reader

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
_SYSTEM_FOLDERS = {
    "@eaDir",
    "#recycle",
    "__MACOSX",
    "$RECYCLE.BIN",
    "System Volume Information",
    "lost+found",
}

log = logging.getLogger(__name__)


def existing_folder(path: str | os.PathLike) -> str:
    """Returns the path of a folder; raises a `ValueError` if it does not exist."""
    path = str(path).rstrip("/")
    if not tf.io.gfile.isdir(path):
        raise ValueError(f"`path` must be an existing folder. Received: path={path!r}")
    return path


def visible_folders(path: str) -> list[str]:
    """Returns the names of the folders in a folder that are neither hidden nor the system's."""
    return [name for name in entries(path)[0] if not _is_hidden(name)]


def image_names(path: str, endings: tuple[str, ...] = IMAGE_ENDINGS) -> tuple[list[str], list[str]]:
    """Returns the names of the visible files in a folder that have one of the endings, sorted, and
    the paths of its other entries."""
    folders, files = entries(path)
    images = [name for name in files if name.lower().endswith(endings) and not _is_hidden(name)]
    others = [*folders, *sorted(set(files) - set(images))]
    return images, [posixpath.join(path, name) for name in others]


def files_below(path: str, endings: tuple[str, ...] = IMAGE_ENDINGS) -> list[str]:
    """Returns the visible files in a folder and its visible subfolders that have one of the
    endings, relative to the folder."""
    below = [
        posixpath.join(folder, name)
        for folder in visible_folders(path)
        for name in files_below(posixpath.join(path, folder), endings)
    ]
    return image_names(path, endings)[0] + below


def existing(paths: Iterable[str]) -> set[str]:
    """Returns the paths that exist, among other files; lists each folder once, which is faster than
    checking files."""
    folders = {posixpath.dirname(path) for path in paths}
    return {
        posixpath.join(folder, name)
        for folder in filter(tf.io.gfile.isdir, folders)
        for name in entries(folder)[1]
    }


def entries(path: str) -> tuple[list[str], list[str]]:
    """Returns the names of the folders and of the other entries in a folder, each sorted."""
    try:
        if "://" in path:
            is_folder = {
                name.rstrip("/"): name.endswith("/") or _is_remote_folder(path, name)
                for name in tf.io.gfile.listdir(path)
            }
        else:
            with os.scandir(path) as scanned:
                is_folder = {entry.name: entry.is_dir() for entry in scanned}
    except (OSError, tf.errors.OpError) as error:
        raise ValueError(
            f"The folder cannot be listed ({error}). Received: path={path!r}"
        ) from None
    names = sorted(is_folder)
    return [n for n in names if is_folder[n]], [n for n in names if not is_folder[n]]


def _is_remote_folder(path, name):
    """Returns whether a name in a remote folder is a folder; a name with a dot is taken for a file,
    because each check is a request."""
    return "." not in name and tf.io.gfile.isdir(posixpath.join(path, name))


def _is_hidden(name):
    return name.startswith(".") or name in _SYSTEM_FOLDERS


def printable(name: str | os.PathLike[str]) -> str:
    """Returns a file name in printable form: normalized to NFC, with invalid UTF-8 bytes escaped,
    such as `\\xff`."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))


@functools.cache
def warn_once(line: str) -> None:
    """Logs a warning once, although training and test images are loaded one after the other."""
    log.warning("%s", line)


def file_source(paths, labels=None, class_names=()):
    """Returns a source of image files with labels as in `Source.labels`.

    Surrogates in `paths` stand for bytes that are not UTF-8, as in `os`.
    """
    if labels is not None:
        labels = np.asarray(labels)
    multi_label = labels is not None and labels.ndim == 2
    path_tensor = tf.constant([os.fsencode(path) for path in paths])
    label_of = None if labels is None else label_reader(labels)

    def read(index):
        example = {"image": tf.io.read_file(path_tensor[index])}
        return example if label_of is None else {**example, "label": label_of(index)}

    return Source(
        read,
        len(paths),
        tuple(class_names),
        name_of=lambda index: printable(paths[index]),
        checksum=lambda: checksum_of(paths),
        stored=lambda: ((path, 0, 1) for path in paths),
        labels=labels,
        empty_is_negative=multi_label,
        multi_label=multi_label,
        finds_classes=labels is not None,
        options={"exif": "on"},
    )
