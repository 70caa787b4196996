"""Image files in a folder with one subfolder for each class."""

import contextlib
import contextvars
import dataclasses
import hashlib
import logging
import os
import posixpath
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.source import Source, check_names, checksum_of

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")

log = logging.getLogger(__name__)
_listed = contextvars.ContextVar("listed", default=None)


@contextlib.contextmanager
def listed_once():
    """While it is open, each folder is listed once, however many splits are made of it. So they are parts of one list,
    and a file that comes in the meantime moves none from one split to another. Also a decorator."""
    known = _listed.get()
    token = _listed.set({} if known is None else known)
    try:
        yield
    finally:
        _listed.reset(token)


def folder(
    path: str | os.PathLike,
    split: str = "",
    class_names: Sequence[str] | None = None,
    test_share: float = 0.1,
    split_seed: int = 0,
) -> Source:
    """A source of the images in `path/<split>/<class>/*`, or of a hashed part of `path/<class>/*`.

    Classes and files are in the order of their names. Files that do not end like images (.jpg, .jpeg, .png, .gif,
    .bmp, .webp), hidden files and what is not a file (a pipe, a broken link) are left out; how many is logged.

    Args:
        path: a folder, local or anything that `tf.io.gfile` opens, such as `gs://`.
        split: the subfolder to read, where there is one of that name. Where there is none, "train" or "test" is a
            part of `path`, divided within each class by a hash of the file's name, and "tune_train" or "tune_val" is
            a part of what "train" is; "" is all of `path`.
        class_names: the classes, in order; otherwise the names of the subfolders, sorted.
        test_share: the share of each class, in (0, 1), that a hashed split has as "test" or "tune_val"; of a class
            of two or more images at least one, and never all.
        split_seed: another seed divides otherwise.

    Raises:
        ValueError: there is no such folder or split, it holds no images, or a subfolder that is not a class.
    """
    path = str(path).rstrip("/")
    if not tf.io.gfile.isdir(path):
        raise ValueError(f"There is no such folder. Received: path={path!r}")
    tuning = split in ("tune_train", "tune_val") and not tf.io.gfile.isdir(posixpath.join(path, split))
    whole = "train" if tuning else split
    subfolder = posixpath.join(path, whole)
    hashed = bool(whole) and not tf.io.gfile.isdir(subfolder)
    if hashed and whole not in ("train", "test"):
        raise ValueError(
            f"The split must be a subfolder of {path!r}, or 'train', 'test', 'tune_train' or 'tune_val' to divide it. "
            f"Received: split={split!r}"
        )
    root = path if hashed else subfolder
    folders = [name for name in entries_of(root).folders if not name.startswith(".")]
    if hashed and {"train", "test", "val", "validation"} & set(folders):
        raise ValueError(f"{path!r} is divided into {folders} and has no split of that name. Received: split={split!r}")
    names = check_names(class_names or map(printable, folders))
    unknown = sorted({printable(name) for name in folders} - set(names))
    if unknown:
        raise ValueError(f"Subfolders must be named like classes. Received: {unknown[:10]} in {root!r}")
    label_of = {name: label for label, name in enumerate(names)}
    present = sorted((label_of[printable(name)], name) for name in folders)
    context = contextvars.copy_context()  # of which a thread has another one
    with ThreadPoolExecutor(16 if "://" in root else 1) as pool:
        listed = list(pool.map(lambda item: context.copy().run(_images, posixpath.join(root, item[1])), present))
    _warn_of_others(root, [others for _, others in listed])
    files = [images for images, _ in listed]
    if hashed:
        files = [
            _part(whole == "test", name, images, test_share, split_seed) for (_, name), images in zip(present, files)
        ]
    if tuning:
        parts = zip(present, files)
        files = [_part(split == "tune_val", f"tune/{name}", of, test_share, split_seed) for (_, name), of in parts]
    counts = [len(images) for images in files]
    flat = [name for images in files for name in images]
    if not flat and hashed and any(images for images, _ in listed):
        raise ValueError(
            f"The split has no images; set --config.data.test_share, or make subfolders `train` and `test`. "
            f"Received: split={split!r}, test_share={test_share}, path={path!r}"
        )
    if not flat:
        raise ValueError(f"A folder of images has {root}/<class>/<image>, and here are none. Received: path={path!r}")
    labels = np.repeat(np.array([label for label, _ in present], np.int64), counts)
    return file_source(
        [posixpath.join(root, name) for _, name in present],
        flat,
        np.repeat(np.arange(len(present)), counts),
        labels,
        names,
    )


@listed_once()
def folder_splits(path: str | os.PathLike) -> dict[str, Source]:
    """A source of each split of a folder: of `path/<split>/<class>/*`, or of `path/<class>/*`, one by the name "".

    Args:
        path: as in `folder`.

    Returns:
        A dict from the name of a split to a `Source`. All have the classes of all splits.

    Raises:
        ValueError: there is no such folder, or a split holds no images.
    """
    path = str(path).rstrip("/")
    if not tf.io.gfile.isdir(path):
        raise ValueError(f"There is no such folder. Received: path={path!r}")
    subfolders = [name for name in entries_of(path).folders if not name.startswith(".")]
    classes = {name: entries_of(posixpath.join(path, name)).folders for name in subfolders}
    splits = [name for name in subfolders if classes[name]]
    if not splits or any(_images(posixpath.join(path, name))[0] for name in subfolders):
        return {"": folder(path)}
    names = sorted({printable(name) for split in splits for name in classes[split] if not name.startswith(".")})
    return {split: folder(path, split, names) for split in splits}


def file_source(folders, files, where, labels, class_names):
    """A source of `folders[where[i]]/files[i]`: folders apart, so that a million names stay small in memory.

    Names are those of `os`, where bytes that are not UTF-8 are surrogates.
    """
    folder_tensor, file_tensor = (tf.constant([os.fsencode(name) for name in names]) for names in (folders, files))
    where_tensor, label_tensor = tf.constant(where, tf.int64), tf.constant(labels, tf.int64)

    def read(index):
        name = tf.strings.join([folder_tensor[where_tensor[index]], file_tensor[index]], "/")
        return {"image": tf.io.read_file(name), "label": label_tensor[index]}

    def name_of(index):
        return posixpath.join(printable(folders[where[index]]), printable(os.fsdecode(file_tensor[index].numpy())))

    def checksum():
        return checksum_of(f"{folders[folder]}/{name}" for folder, name in zip(where, files))

    return Source(read, len(labels), tuple(class_names), name_of=name_of, labels=labels, checksum=checksum)


def printable(name):
    """A file's name as text that can be printed: in Unicode's form NFC, a byte that is not UTF-8 as `\\xff`."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))


@dataclasses.dataclass
class Entries:
    """What is in a folder: the names of its folders, of its files, and of what is neither or cannot be looked at."""

    folders: list
    files: list
    others: list


def entries_of(path):
    """The `Entries` of a folder, each list sorted.

    Raises:
        ValueError: the folder cannot be listed.
    """
    known = _listed.get()
    if known is None:
        return _list(path)
    if path not in known:
        known[path] = _list(path)
    return known[path]


def _list(path):
    entries = Entries([], [], [])
    try:
        if "://" in path:
            names = tf.io.gfile.listdir(path)
            isdir = tf.io.gfile.isdir
            folders = {name for name in names if name.endswith("/")}
            folders |= {name for name in names if "." not in name and isdir(posixpath.join(path, name))}
            entries.folders = sorted(name.rstrip("/") for name in folders)
            entries.files = sorted(name for name in names if name not in folders)
            return entries
        with os.scandir(path or ".") as listed:
            for entry in listed:
                _kind(entry, entries).append(entry.name)
    except (OSError, tf.errors.OpError) as error:
        raise ValueError(f"A folder cannot be listed ({error}). Received: path={path!r}") from None
    for names in (entries.folders, entries.files, entries.others):
        names.sort()
    return entries


def _kind(entry, entries):
    """The list that an `os.DirEntry` belongs to. To open a pipe would wait forever."""
    try:
        return entries.folders if entry.is_dir() else entries.files if entry.is_file() else entries.others
    except OSError:  # a loop of links
        return entries.others


def _images(path):
    """The image files of a folder, sorted, and the names of its other entries."""
    entries = entries_of(path)
    is_image = lambda name: name.lower().endswith(IMAGE_ENDINGS) and not name.startswith(".")  # noqa: E731
    images = [name for name in entries.files if is_image(name)]
    others = entries.folders + entries.others + [name for name in entries.files if not is_image(name)]
    return images, [posixpath.join(path, name) for name in others]


def _warn_of_others(root, others):
    """Says which entries of the classes' folders are left out, by lists of their names."""
    names = [printable(name) for of_class in others for name in of_class]
    if names:
        log.warning(
            "%s: %d entries are not files that end like images (%s) and are left out, the first of them %s",
            root,
            len(names),
            ", ".join(IMAGE_ENDINGS),
            ", ".join(names[:5]),
        )


def _part(is_test, class_name, files, test_share, seed):
    """The files of one class in a hashed split, in order."""
    if not 0 < test_share < 1:
        raise ValueError(f"`test_share` must be between 0 and 1. Received: test_share={test_share}")
    # The same files are drawn wherever the folder lies and whatever else is in it.
    key = os.fsencode(f"{seed}/{class_name}/")
    by_hash = sorted(files, key=lambda name: hashlib.blake2b(key + os.fsencode(name), digest_size=8).digest())
    count = min(max(round(test_share * len(files)), 1), len(files) - 1)
    test = set(by_hash[: max(count, 0)])
    return [name for name in files if (name in test) == is_test]
