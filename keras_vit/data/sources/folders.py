"""Sources of image files in folders: one subfolder per class, or images without classes."""

import os
import posixpath
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from keras_vit.data.sources.division import HASHED, Division
from keras_vit.data.sources.listing import (
    IMAGE_ENDINGS,
    existing_folder,
    file_source,
    files_below,
    image_names,
    printable,
    visible_folders,
    warn_once,
)
from keras_vit.data.sources.source import Source, check_names
from keras_vit.data.sources.text_files import names_in

_SPLITS = {"train", "test", "val", "validation"}  # not the names of classes
_FOLDERS_AT_A_TIME = 16  # number of folders listed in parallel


def folder(
    path: str | os.PathLike,
    split: str = "",
    class_names: Sequence[str] | None = None,
    test_share: float = 0.1,
    split_seed: int = 0,
    groups: str = "",
    fold: str = "",
) -> Source:
    """Returns a source of the images in `path/<split>/<class>/*`, or in a hash-based split of
    `path/<class>/*`.

    Images are sorted by class, then by file name. Hidden folders and folders of the system, such as
    `@eaDir` and `__MACOSX`, are not classes; links to folders are followed. In a class folder,
    hidden files, files with an extension other than .jpg, .jpeg, .png, .gif, .bmp and .webp, and
    subfolders are skipped and logged.

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
        groups: regular expression with one group for file names, such as `^([^_]+)_`; a hash-based
            split never divides images with the same text there, also of different classes.
        fold: "2/5" makes "test" the second of five folds; "" applies `test_share`.

    Raises:
        ValueError: the folder or the split does not exist or contains no images, a subfolder is not
            a class, `class_names` contains duplicates, a name has no group, `test_share` or `fold`
            is out of range, or `groups` or `fold` is set for a split that is a subfolder.
    """
    division = Division(test_share, split_seed, groups, fold)
    path = existing_folder(path)
    stored = _stored_split(path, split)
    root = path if stored is None else posixpath.join(path, stored)
    if stored == split or (fold and stored):
        division.check_unused(split, path)
    if stored is None:
        _check_hashed(path, split)
    folders = visible_folders(root)
    if loose := image_names(root)[0]:
        warn_once(
            f"{root}: skipped {len(loose)} images outside of the folders of classes, such as "
            f"{printable(loose[0])}"
        )
    names = check_names(class_names or map(printable, folders))
    rows = _labeled_images(root, folders, names)
    if stored != split:
        images = [
            posixpath.join(name, image) if "/" in groups else image for name, image, _ in rows
        ]
        classes = [name for name, _, _ in rows]
        kept = division.indices(split, images, classes, only_train=stored is not None)
        rows = [rows[i] for i in kept]
    if not rows:
        raise ValueError(
            f"`path` must contain images as {root.rstrip('/')}/<class>/<image>. Received: "
            f"path={path!r}"
        )
    paths = [posixpath.join(root, name, image) for name, image, _ in rows]
    return file_source(paths, [label for _, _, label in rows], names)


def _stored_split(path, split):
    """Returns the subfolder of `path` with the images of a split, "train" for "tune_train" and
    "tune_val", or None if a hash divides all images."""
    names = [split, "train"] if split in ("tune_train", "tune_val") else [split]
    return next((name for name in names if tf.io.gfile.isdir(posixpath.join(path, name))), None)


def _check_hashed(path, split):
    """Raises a `ValueError` unless a hash can divide the images in `path` into such a split."""
    folders = visible_folders(path)
    if split not in HASHED or _SPLITS & set(folders):
        raise ValueError(
            f"`split` must be a subfolder of {path!r}, or {', '.join(HASHED)} for a folder without "
            f"subfolders for splits. Received: split={split!r}, subfolders={folders[:10]}"
        )


def _labeled_images(root, folders, names):
    """Returns `(folder, image, label)` for the images in the folders of the classes `names`, by
    label; logs other entries."""
    unknown = sorted({printable(name) for name in folders} - set(names))
    if unknown:
        raise ValueError(
            f"Subfolders must have the names of classes. Received: {unknown[:10]} in {root!r}"
        )
    label_of = {name: label for label, name in enumerate(names)}
    present = sorted((label_of[printable(name)], name) for name in folders)
    with ThreadPoolExecutor(_FOLDERS_AT_A_TIME) as pool:
        listed = [*pool.map(lambda pair: image_names(posixpath.join(root, pair[1])), present)]
    others = [printable(path) for _, paths in listed for path in paths]
    if others:
        warn_once(
            f"{root}: skipped {len(others)} entries that are not image files "
            f"({', '.join(IMAGE_ENDINGS)}), such as {', '.join(others[:5])}"
        )
    return [
        (name, image, label)
        for (label, name), (images, _) in zip(present, listed)
        for image in images
    ]


def has_no_splits(path: str | os.PathLike) -> bool:
    """Returns whether no subfolder of `path` is a split, so that a hash divides its images."""
    return not _SPLITS & set(visible_folders(existing_folder(path)))


def folder_splits(path: str | os.PathLike) -> dict[str, Source]:
    """Returns a dict with a source for each split in `path/<split>/<class>/*`, all with the same
    classes.

    If `path` has no split subfolders, the dict contains one source, with key "".
    """
    path = existing_folder(path)
    classes = {name: visible_folders(posixpath.join(path, name)) for name in visible_folders(path)}
    splits = {name for name in classes if classes[name]}
    without_classes = {name for name in classes if image_names(posixpath.join(path, name))[0]}
    if not splits or (without_classes and not _SPLITS & splits):
        return {"": folder(path)}
    names = sorted({printable(name) for inside in classes.values() for name in inside})
    return {
        split: folder(path, split, names) for split in classes if split in splits | without_classes
    }


def split_of_folder(split, *, path="", class_names="", **division):
    """Loads a split of a folder.

    Args:
        path: folder of the images.
        class_names: path of a text file with one class name per line, in order; "" for the sorted
            names of subfolders.
        **division: fields of `Division`.
    """
    return folder(path, split, names_in(class_names), **division)


def split_of_images(split, *, path="", **division):
    """Loads images without classes: those in `path/<split>` and its subfolders, or a hash-based
    split of `path`.

    Args:
        path: folder of the images.
        **division: fields of `Division`.
    """
    path = existing_folder(path)
    root = posixpath.join(path, split)
    if tf.io.gfile.isdir(root):
        Division(**division).check_unused(split, path)
        names = files_below(root)
    else:
        _check_hashed(path, split)
        root = path
        names = files_below(root)
        names = [names[i] for i in Division(**division).indices(split, names, [""] * len(names))]
    if not names:
        raise ValueError(
            f"`path` must contain images for each split. Received: path={path!r}, split={split!r}"
        )
    return file_source([posixpath.join(root, name) for name in names])
