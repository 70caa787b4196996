"""Image files: a folder with one subfolder for each class, or a list of files and labels."""

import csv
import hashlib
import logging
import os
import posixpath
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.source import Source, check_labels

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
HEADERS = {"file", "filename", "file_name", "path", "filepath", "image", "image_path"}

log = logging.getLogger(__name__)


def folder(path, split="", class_names=None, test_share=0.1, split_seed=0):
    """A source of the images in `path/<split>/<class>/*`, or of a hashed part of `path/<class>/*`.

    Classes and files are in the order of their names. Files that do not end like images (.jpg, .jpeg, .png, .gif,
    .bmp, .webp) and hidden files are left out; how many is logged.

    Args:
        path: a folder, local or anything that `tf.io.gfile` opens, such as `gs://`.
        split: the subfolder to read, where there is one of that name. Where there is none, "train" or "test" is a
            part of `path`, divided within each class by a hash of the file's name; "" is all of `path`.
        class_names: the classes, in order; otherwise the names of the subfolders, sorted.
        test_share: the share of each class, in (0, 1), that a hashed split has as "test".
        split_seed: another seed divides otherwise.

    Raises:
        ValueError: there is no such folder or split, it holds no images, or a subfolder that is not a class.
    """
    path = str(path).rstrip("/")
    if not tf.io.gfile.isdir(path):
        raise ValueError(f"There is no such folder. Received: path={path!r}")
    subfolder = posixpath.join(path, split)
    hashed = bool(split) and not tf.io.gfile.isdir(subfolder)
    if hashed and split not in ("train", "test"):
        raise ValueError(
            f"The split must be a subfolder of {path!r}, or 'train' or 'test' to divide it. Received: split={split!r}"
        )
    root = path if hashed else subfolder
    folders = sorted(name for name in _entries(root)[0] if not name.startswith("."))
    if hashed and {"train", "test", "val", "validation"} & set(folders):
        raise ValueError(f"{path!r} is divided into {folders} and has no split of that name. Received: split={split!r}")
    names = tuple(class_names or folders)
    unknown = sorted(set(folders) - set(names))
    if unknown:
        raise ValueError(f"Subfolders must be named like classes. Received: {unknown[:10]} in {root!r}")
    present = [(label, name) for label, name in enumerate(names) if name in set(folders)]
    with ThreadPoolExecutor(16 if "://" in root else 1) as pool:
        listed = list(pool.map(lambda item: _images(posixpath.join(root, item[1])), present))
    ignored = sum(others for _, others in listed)
    if ignored:
        log.warning(
            "%s: %d files do not end like images (%s) and are left out", root, ignored, ", ".join(IMAGE_ENDINGS)
        )
    files = [images for images, _ in listed]
    if hashed:
        files = [_part(split, name, images, test_share, split_seed) for (_, name), images in zip(present, files)]
    labels = np.repeat(np.array([label for label, _ in present], np.int64), [len(images) for images in files])
    flat = [name for images in files for name in images]
    if not flat:
        raise ValueError(f"A folder of images has {root}/<class>/<image>, and here are none. Received: path={path!r}")
    return _file_source([posixpath.join(root, name) for name in names], flat, labels, labels, names)


def folder_splits(path):
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
    subfolders = sorted(name for name in _entries(path)[0] if not name.startswith("."))
    classes = {name: _entries(posixpath.join(path, name))[0] for name in subfolders}
    splits = [name for name in subfolders if classes[name]]
    if not splits or any(_images(posixpath.join(path, name))[0] for name in subfolders):
        return {"": folder(path)}
    names = sorted({name for split in splits for name in classes[split] if not name.startswith(".")})
    return {split: folder(path, split, names) for split in splits}


def file_list(path, root="", class_names=None):
    """A source of the image files that a list names, each with its label.

    A `.csv` has one file and one label a row, with or without a header; any other file has them on a line, with
    white space between. Labels are names of classes, or integers from 0.

    Args:
        path: the list; local or `gs://`.
        root: the folder that relative names start from; by default the folder of the list.
        class_names: the classes, in order; otherwise the labels, sorted, or the integers up to the largest.

    Raises:
        ValueError: the list is empty, a line is not a file and a label, a file is missing, or a label is not a class.
    """
    path = str(path)
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        raise ValueError(f"There is no such list. Received: path={path!r}")
    root = (str(root) or posixpath.dirname(path)).rstrip("/")
    rows = _rows(path)
    words = [label for _, label in rows]
    if all(word.isdecimal() for word in words) and not set(words) <= set(class_names or ()):
        labels = np.array([int(word) for word in words], np.int64)
        names = tuple(class_names or map(str, range(labels.max() + 1)))
        check_labels(labels, names)
    else:
        names = tuple(class_names or sorted(set(words)))
        number = {name: label for label, name in enumerate(names)}
        unknown = sorted(set(words) - set(names))
        if unknown:
            raise ValueError(f"Labels must be among the {len(names)} classes. Received: {unknown[:10]} in {path!r}")
        labels = np.array([number[word] for word in words], np.int64)
    full = [name if "://" in name else posixpath.join(root, name) for name, _ in rows]
    folders = sorted({posixpath.dirname(name) for name in full})
    there = {name: set(_entries(name)[1]) if tf.io.gfile.isdir(name or ".") else () for name in folders}
    missing = [name for name in full if posixpath.basename(name) not in there[posixpath.dirname(name)]]
    if missing:
        raise ValueError(f"{len(missing)} of {len(full)} files are missing. Received: {missing[:10]} in {path!r}")
    place = {name: number for number, name in enumerate(folders)}
    where = np.array([place[posixpath.dirname(name)] for name in full], np.int64)
    return _file_source(folders, [posixpath.basename(name) for name in full], where, labels, names)


def _file_source(folders, files, where, labels, class_names):
    """A source of `folders[where[i]]/files[i]`: folders apart, so that a million names stay small in memory."""
    folder_tensor, file_tensor = tf.constant(folders), tf.constant(files)
    where_tensor, label_tensor = tf.constant(where, tf.int64), tf.constant(labels, tf.int64)

    def read(index):
        name = tf.strings.join([folder_tensor[where_tensor[index]], file_tensor[index]], "/")
        return {"image": tf.io.read_file(name), "label": label_tensor[index]}

    def name_of(index):
        return posixpath.join(folders[where[index]], tf.compat.as_str_any(file_tensor[index].numpy()))

    return Source(read, len(labels), tuple(class_names), name_of=name_of, labels=labels)


def _entries(path):
    """The folders and the files in a folder, by name."""
    if "://" in path:
        names = tf.io.gfile.listdir(path)
        folders = {name for name in names if name.endswith("/")}
        folders |= {name for name in names if "." not in name and tf.io.gfile.isdir(posixpath.join(path, name))}
        return [name.rstrip("/") for name in folders], [name for name in names if name not in folders]
    folders, files = [], []
    with os.scandir(path or ".") as entries:
        for entry in entries:
            (folders if entry.is_dir() else files).append(entry.name)
    return folders, files


def _images(path):
    """The image files of a folder, sorted, and how many other entries it has."""
    folders, files = _entries(path)
    images = sorted(name for name in files if name.lower().endswith(IMAGE_ENDINGS) and not name.startswith("."))
    return images, len(folders) + len(files) - len(images)


def _part(split, class_name, files, test_share, seed):
    """The files of one class in a hashed split, in order."""
    if not 0 < test_share < 1:
        raise ValueError(f"`test_share` must be between 0 and 1. Received: test_share={test_share}")
    # The same files are drawn wherever the folder lies and whatever else is in it.
    key = f"{seed}/{class_name}/".encode()
    by_hash = sorted(files, key=lambda name: hashlib.blake2b(key + name.encode(), digest_size=8).digest())
    test = set(by_hash[: round(test_share * len(files))])
    return [name for name in files if (name in test) == (split == "test")]


def _rows(path):
    """`(file, label)` of each line."""
    with tf.io.gfile.GFile(path) as file:
        if path.endswith(".csv"):
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
            if rows and rows[0][0].lower() in HEADERS:
                rows = rows[1:]
        else:
            rows = [line.rsplit(maxsplit=1) for line in file if line.strip()]
    if not rows:
        raise ValueError(f"The list is empty. Received: path={path!r}")
    for row in rows:
        if len(row) != 2 or not all(row):
            raise ValueError(f"A line must be a file and a label. Received: {row!r} in {path!r}")
    return rows
