"""Sources of image files: a folder with one subfolder per class, or a list of files in a CSV or
text file."""

import collections
import csv
import dataclasses
import functools
import hashlib
import logging
import os
import posixpath
import re
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.source import (
    Source,
    check_labels,
    check_names,
    check_pattern,
    checksum_of,
)
from keras_vit.files import did_you_mean_path, read_text

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
HEADERS = {"file", "filename", "file_name", "path", "filepath", "image", "image_path"}
_SYSTEM_FOLDERS = {
    "@eaDir",
    "#recycle",
    "__MACOSX",
    "$RECYCLE.BIN",
    "System Volume Information",
    "lost+found",
}
_SPLITS = {"train", "test", "val", "validation"}  # not the names of classes
_MAX_CLASSES = 1_000_000  # each class takes memory, and a larger label is probably a mistake

log = logging.getLogger(__name__)


def folder(
    path: str | os.PathLike,
    split: str = "",
    class_names: Sequence[str] | None = None,
    test_share: float = 0.1,
    split_seed: int = 0,
) -> Source:
    """Returns a source of the images in `path/<split>/<class>/*`, or in a hash-based split of
    `path/<class>/*`.

    Images are sorted by class, then by file name. Hidden folders and folders of the system, such as
    `@eaDir` and `__MACOSX`, are not classes; links to folders are followed. In a class folder,
    hidden files, files with an extension other than .jpg, .jpeg, .png, .gif, .bmp and .webp, and
    entries that are not files (subfolders, pipes, broken links) are skipped and logged.

    Args:
        path: a local folder, or a remote folder that `tf.io.gfile` can read, such as
            `gs://bucket/photos`.
        split: a subfolder of `path`, or "" for `path` itself. Without a subfolder of that name,
            "train" and "test" divide each class of `path` by a hash of file names, and "tune_train"
            and "tune_val" divide "train" in the same way.
        class_names: class names, in order; by default the sorted names of the subfolders.
        test_share: fraction of each class in a hash-based "test" or "tune_val" split, in (0, 1). If
            a class has two or more images to divide, each part gets at least one.
        split_seed: seed of the hash-based split.

    Raises:
        ValueError: the folder or the split does not exist or contains no images, a subfolder is not
            a class, `class_names` contains duplicates, or `test_share` is out of range.
    """
    path = _existing(path)
    tuning = split in ("tune_train", "tune_val") and not tf.io.gfile.isdir(
        posixpath.join(path, split)
    )
    whole = "train" if tuning else split
    subfolder = posixpath.join(path, whole)
    hashed = bool(whole) and not tf.io.gfile.isdir(subfolder)
    # List the images of each class.
    root = path if hashed else subfolder
    folders = _visible_folders(root)
    if hashed and (whole not in ("train", "test") or _SPLITS & set(folders)):
        raise ValueError(
            f"`split` must be a subfolder of {path!r}, or 'train', 'test', 'tune_train' or "
            f"'tune_val' for a folder without split subfolders. Received: split={split!r}, "
            f"subfolders={folders[:10]}"
        )
    names = check_names(class_names or map(printable, folders))
    unknown = sorted({printable(name) for name in folders} - set(names))
    if unknown:
        raise ValueError(
            f"Subfolders must have the names of classes. Received: {unknown[:10]} in {root!r}"
        )
    label_of = {name: label for label, name in enumerate(names)}
    present = sorted((label_of[printable(name)], name) for name in folders)
    with ThreadPoolExecutor(16 if "://" in root else 1) as pool:
        listed = list(pool.map(lambda item: _images(posixpath.join(root, item[1])), present))
    others = [printable(name) for _, of_class in listed for name in of_class]
    if others:
        endings = ", ".join(IMAGE_ENDINGS)
        some = ", ".join(others[:5])
        _warn_once(
            f"{root}: skipped {len(others)} entries that are not image files ({endings}), such as "
            f"{some}"
        )
    # Select the images of a hash-based split.
    paths = []
    labels = []
    for (label, name), (images, _) in zip(present, listed):
        if hashed:
            images = _part(images, name, whole == "test", test_share, split_seed)
        if tuning:
            images = _part(images, f"tune/{name}", split == "tune_val", test_share, split_seed)
        paths += [posixpath.join(root, name, image) for image in images]
        labels += [label] * len(images)
    if not paths and any(images for images, _ in listed):
        raise ValueError(
            "The split has no images, because classes with a single image are only used for "
            "training: change --config.data.test_share, or create subfolders `train` and `test`. "
            f"Received: split={split!r}, test_share={test_share}, path={path!r}"
        )
    if not paths:
        place = root.rstrip("/")
        advice = f" The images directly in {place} have no class." if _images(root)[0] else ""
        if advice and split and _visible_folders(posixpath.join(path, "train")):
            advice += (
                f" The folder {path}/train alone can be divided into training and test images "
                "(test_share)."
            )
        raise ValueError(
            f"`path` must contain images as {place}/<class>/<image>.{advice} Received: "
            f"path={path!r}"
        )
    return _file_source(paths, np.array(labels, np.int64), names)


def has_no_splits(path: str | os.PathLike) -> bool:
    """Returns whether no subfolder of `path` is a split, so that `folder` divides its classes by a
    hash."""
    return not _SPLITS & set(_visible_folders(_existing(path)))


def folder_splits(path: str | os.PathLike) -> dict[str, Source]:
    """Returns a dict with a source for each split in `path/<split>/<class>/*`, all with the same
    classes.

    If `path` has no split subfolders, the dict contains one source, with key "".
    """
    path = _existing(path)
    classes = {
        name: _visible_folders(posixpath.join(path, name)) for name in _visible_folders(path)
    }
    splits = [name for name in classes if classes[name]]
    without_classes = [name for name in classes if _images(posixpath.join(path, name))[0]]
    if not splits or (without_classes and not _SPLITS & set(splits)):
        return {"": folder(path)}
    names = sorted({printable(name) for split in splits for name in classes[split]})
    return {
        split: folder(path, split, names) for split in dict.fromkeys([*splits, *without_classes])
    }


def file_list(
    path: str | os.PathLike,
    root: str = "",
    class_names: Sequence[str] | None = None,
    only_names: bool = False,
) -> Source:
    """Returns a source of the image files and labels in a list.

    A `.csv` list has rows with an image file and a label, and may have a header, such as
    `file,label`. Any other list has lines with an image file and a label, separated by white space.
    Labels are class names, or integers from 0. If any of `class_names` is an integer, all labels
    are treated as names.

    Args:
        path: path of the list, local or remote (`gs://`).
        root: folder to which relative file names refer; by default the folder of the list.
        class_names: class names, in order; by default the sorted labels, or the integers from 0 to
            the largest label.
        only_names: if True and `class_names` is set, all labels are treated as names.

    Raises:
        ValueError: the list is empty or cannot be read, a line does not consist of a file and a
            label, a file is missing or has several labels, labels mix integers and names without
            `class_names`, a label is too large or not a class, or `class_names` contains
            duplicates.
    """
    path = str(path)
    rows = _rows(path)
    # Convert the labels, integers or names, to indices.
    words = [unicodedata.normalize("NFC", label) for _, _, label in rows]
    names = check_names(class_names or ())
    _warn_about_several(words, path)
    integers = [word.isdecimal() for word in words]
    if any(integers) and not all(integers) and not set(words) <= set(names):
        odd = integers.index(False)
        raise ValueError(
            "Labels must be all integers or all names, unless --config.data.class_names lists "
            f"them. Received: {words[odd]!r} in line {rows[odd][0]} of {path!r}"
        )
    if all(integers) and not (names and (only_names or any(name.isdecimal() for name in names))):
        labels = np.array([min(int(word), _MAX_CLASSES) for word in words], np.int64)
        if labels.max() == _MAX_CLASSES:
            raise ValueError(f"Labels must be below {_MAX_CLASSES:,}. Received: path={path!r}")
        names = names or tuple(map(str, range(labels.max() + 1)))
        check_labels(labels, names)
    else:
        names = names or tuple(sorted(set(words)))
        unknown = sorted(set(words) - set(names))
        if unknown:
            raise ValueError(
                f"Labels must be among the {len(names)} classes. Received: {unknown[:10]} in "
                f"{path!r}"
            )
        label_of = {name: label for label, name in enumerate(names)}
        labels = np.array([label_of[word] for word in words], np.int64)

    # Find the files.
    root = (str(root) or posixpath.dirname(path) or ".").rstrip("/")
    paths = [name if "://" in name else posixpath.join(root, name) for _, name, _ in rows]
    counts = collections.Counter(name for name, _ in set(zip(paths, words)))
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(
            f"Each file must have one label. Received: several labels for {twice[:10]} in {path!r}"
        )
    # List the folders, which is faster than checking each file.
    folders = filter(tf.io.gfile.isdir, {posixpath.dirname(name) for name in paths})
    files = {name: set(_entries(name)[1]) for name in folders}
    missing = [
        name
        for name in paths
        if posixpath.basename(name) not in files.get(posixpath.dirname(name), ())
    ]
    if missing:
        has_ending = any(name.lower().endswith(IMAGE_ENDINGS) for name in missing)
        advice = "" if has_ending else " File names need their ending, such as .jpg."
        raise ValueError(
            f"{len(missing)} of {len(paths)} files are missing.{advice} Received: {missing[:10]} "
            f"in {path!r}"
        )
    source = _file_source(paths, labels, names)
    return dataclasses.replace(source, checksum=lambda: checksum_of(paths, moves=True))


def split_of_folder(split, *, path="", class_names="", test_share=0.1, split_seed=0):
    """Loads a split of a folder.

    Args:
        path: folder of the images.
        class_names: path of a text file with one class name per line, in order; "" for the sorted
            names of subfolders.
        test_share: without split subfolders, the fraction of each class to hold out for testing.
        split_seed: without split subfolders, the seed that selects the held-out images.
    """
    return folder(path, split, names_in(class_names), test_share, split_seed)


def split_of_images(split, *, path="", test_share=0.1, split_seed=0):
    """Loads images without classes: those in `path/<split>` and its subfolders, or a hash-based
    split of `path`.

    Args:
        path: folder of the images.
        test_share: without split subfolders, the fraction of the images to hold out for testing.
        split_seed: without split subfolders, the seed that selects the held-out images.
    """
    path = _existing(path)
    root = posixpath.join(path, split)
    hashed = bool(split) and not tf.io.gfile.isdir(root)
    root = path if hashed else root.rstrip("/")
    names = _images_below(root)
    if hashed and split not in ("train", "test"):
        raise ValueError(
            f"`split` must be train, test, or a subfolder of {path!r}. Received: split={split!r}"
        )
    if hashed:
        names = _part(names, "", split == "test", test_share, split_seed)
    if not names:
        raise ValueError(
            f"`path` must contain images for each split. Received: path={path!r}, split={split!r}"
        )
    return _file_source([posixpath.join(root, name) for name in names])


def split_of_list(split, *, path="", class_names=""):
    """Loads a list of image files; `split` is its path.

    Args:
        path: folder to which relative file names refer; "" for the folder of the list.
        class_names: path of a text file with one class name per line, in order; "" for the sorted
            labels.
    """
    check_pattern(split, path, split)
    # If the names were found in the training list, integers in the test list are names, not
    # indices.
    return file_list(
        split, path, names_in(class_names), only_names=not isinstance(class_names, str)
    )


def names_in(class_names):
    """Returns the class names in a text file as a tuple; None for "", and names that are no path
    unchanged."""
    if not isinstance(class_names, str):
        return class_names
    if not class_names:
        return None
    return tuple(line.strip() for line in read_text_file(class_names).splitlines() if line.strip())


def read_text_file(path):
    """Returns the text of a UTF-8 file, local or remote, with or without a byte-order mark."""
    try:
        return read_text(path).removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"The file must be a UTF-8 text file ({error}). Received: path={str(path)!r}"
        ) from None


def printable(name):
    """Returns a file name in printable form: normalized to NFC, with invalid UTF-8 bytes escaped,
    such as `\\xff`."""
    return unicodedata.normalize("NFC", os.fsencode(name).decode("utf-8", "backslashreplace"))


def _warn_about_several(labels, path):
    """Logs labels such as "cat dog" whose words all occur in other labels too: they may be meant as
    several labels."""
    words_of = {label: re.split(r"[\s,;|]+", label) for label in labels}
    counts = collections.Counter(word for words in words_of.values() for word in set(words))
    several = [
        label
        for label, words in words_of.items()
        if len(words) > 1 and min(map(counts.get, words)) > 1
    ]
    if several:
        _warn_once(
            f"{path}: {len(several)} labels have several words, such as {several[0]!r}; each is "
            "one class, because an image in a list has one label (a dataset of TFDS may have "
            "several)"
        )


def _file_source(paths, labels=None, class_names=()):
    """Returns a source of image files; in `paths`, surrogates stand for bytes that are not UTF-8,
    as in `os`."""
    path_tensor = tf.constant([os.fsencode(path) for path in paths])
    label_tensor = None if labels is None else tf.constant(labels, tf.int64)

    def read(index):
        example = {"image": tf.io.read_file(path_tensor[index])}
        return example if label_tensor is None else {**example, "label": label_tensor[index]}

    rest = {
        "name_of": lambda index: printable(paths[index]),
        "checksum": lambda: checksum_of(paths),
    }
    rest |= {
        "stored": lambda: ((path, 0, 1) for path in paths),
        "labels": labels,
        "empty_is_negative": False,
    }
    rest["finds_classes"] = labels is not None
    rest["options"] = {"exif": "on"}
    return Source(read, len(paths), tuple(class_names), **rest)


def _existing(path: str | os.PathLike) -> str:
    path = str(path).rstrip("/")
    if not tf.io.gfile.isdir(path):
        near = did_you_mean_path(path)
        raise ValueError(f"`path` must be an existing folder.{near} Received: path={path!r}")
    return path


def is_hidden(name: str) -> bool:
    """Returns whether the name of a file or folder is hidden or the system's, so that no command
    reads it."""
    return name.startswith(".") or name in _SYSTEM_FOLDERS


@functools.cache
def _warn_once(line):
    """Logs a warning once, although training and test images are loaded one after the other."""
    log.warning("%s", line)


def _visible_folders(path):
    return [name for name in _entries(path)[0] if not is_hidden(name)]


def _images(path):
    """Returns the names of the image files in a folder, sorted, and the paths of its other
    entries."""
    folders, files, others = _entries(path)
    images = [
        name for name in files if name.lower().endswith(IMAGE_ENDINGS) and not is_hidden(name)
    ]
    return images, [
        posixpath.join(path, name)
        for name in [*folders, *others, *sorted(set(files) - set(images))]
    ]


def _images_below(path):
    """Returns the image files in a folder and its visible subfolders, relative to it."""
    below = [
        posixpath.join(folder, name)
        for folder in _visible_folders(path)
        for name in _images_below(f"{path}/{folder}")
    ]
    return _images(path)[0] + below


def _entries(path):
    """Returns the names of the folders, the files and the other entries (such as pipes) in a
    folder, each sorted."""
    try:
        if "://" in path:
            names = tf.io.gfile.listdir(path)
            isdir = lambda name: "." not in name and tf.io.gfile.isdir(posixpath.join(path, name))  # noqa: E731
            folders = {name for name in names if name.endswith("/") or isdir(name)}
            return sorted(name.rstrip("/") for name in folders), sorted(set(names) - folders), []
        with os.scandir(path) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
        folders = [entry.name for entry in entries if entry.is_dir()]
        files = [entry.name for entry in entries if entry.is_file()]
        return (
            folders,
            files,
            [entry.name for entry in entries if not entry.is_dir() and not entry.is_file()],
        )
    except (OSError, tf.errors.OpError) as error:
        raise ValueError(
            f"The folder cannot be listed ({error}). Received: path={path!r}"
        ) from None


def _part(files, class_name, is_test, test_share, seed):
    """Returns the files of one class that belong to a hash-based split, in order."""
    if not 0 < test_share < 1:
        raise ValueError(f"`test_share` must be between 0 and 1. Received: test_share={test_share}")
    # Hash names only, so that a split depends neither on the path of the folder nor on the other
    # classes.
    key = os.fsencode(f"{seed}/{class_name}/")
    by_hash = sorted(
        files, key=lambda name: hashlib.blake2b(key + os.fsencode(name), digest_size=8).digest()
    )
    count = min(max(round(test_share * len(files)), 1), len(files) - 1)
    test = set(by_hash[: max(count, 0)])
    return [name for name in files if (name in test) == is_test]


def _rows(path):
    """Returns `[line number, file, label]` for each line of a list except its header and empty
    lines."""
    lines = read_text_file(path).splitlines()
    if path.endswith(".csv"):
        reader = csv.reader(lines)
        rows = [[reader.line_num, *(cell.strip() for cell in row)] for row in reader if row]
        if rows and rows[0][1].lower() in HEADERS:
            rows = rows[1:]
        elif [row[1].lower().endswith(IMAGE_ENDINGS) for row in rows[:2]] == [False, True]:
            raise ValueError(
                "The first line must be an image file and its label, or the header file,label. "
                f"Received: {','.join(rows[0][1:])!r} in line 1 of {path!r}"
            )
    else:
        rows = [
            [number, *line.rsplit(maxsplit=1)]
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
    if not rows:
        raise ValueError(f"The list is empty. Received: path={path!r}")
    for row in rows:
        if len(row) != 3 or not all(row):
            raise ValueError(
                f"Each line must have a file and a label. Received: {row[1:]!r} in line {row[0]} "
                f"of {path!r}"
            )
    return rows
