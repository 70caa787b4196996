"""Sources of image files in folders: one subfolder per class, or images without classes."""

import os
import posixpath
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from keras_vit.data.sources.division import Division
from keras_vit.data.sources.listing import (
    IMAGE_ENDINGS,
    existing_folder,
    file_source,
    image_names,
    images_below,
    names_in,
    printable,
    visible_folders,
    warn_once,
)
from keras_vit.data.sources.source import Source, check_names

_SPLITS = {"train", "test", "val", "validation"}  # not the names of classes


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
    tuning = split in ("tune_train", "tune_val") and not tf.io.gfile.isdir(
        posixpath.join(path, split)
    )
    whole = "train" if tuning else split
    subfolder = posixpath.join(path, whole)
    hashed = bool(whole) and not tf.io.gfile.isdir(subfolder)
    if not hashed and (fold or not tuning):
        division.check_unused(split, path)
    root = path if hashed else subfolder
    folders = visible_folders(root)
    if hashed and (whole not in ("train", "test") or _SPLITS & set(folders)):
        raise ValueError(
            f"`split` must be a subfolder of {path!r}, or 'train', 'test', 'tune_train' or "
            f"'tune_val' for a folder without split subfolders. Received: split={split!r}, "
            f"subfolders={folders[:10]}"
        )
    if loose := image_names(root)[0]:
        warn_once(
            f"{root}: skipped {len(loose)} images outside of the folders of classes, such as "
            f"{printable(loose[0])}"
        )
    names = check_names(class_names or map(printable, folders))
    rows = _labeled_images(root, folders, names)
    if hashed or tuning:
        folders_of_rows = [name for name, _, _ in rows]
        images = [image for _, image, _ in rows]
        if "/" in groups:
            images = [posixpath.join(name, image) for name, image, _ in rows]
        kept = division.indices(split, images, folders_of_rows, only_train=not hashed)
        rows = [rows[i] for i in kept]
    if not rows:
        raise ValueError(
            f"`path` must contain images as {root.rstrip('/')}/<class>/<image>. Received: "
            f"path={path!r}"
        )
    paths = [posixpath.join(root, name, image) for name, image, _ in rows]
    return file_source(paths, [label for _, _, label in rows], names)


def _labeled_images(root, folders, names):
    """Returns `(folder, image, label)` for the images in the folders of the classes `names`, by
    label."""
    unknown = sorted({printable(name) for name in folders} - set(names))
    if unknown:
        raise ValueError(
            f"Subfolders must have the names of classes. Received: {unknown[:10]} in {root!r}"
        )
    label_of = {name: label for label, name in enumerate(names)}
    present = sorted((label_of[printable(name)], name) for name in folders)
    listed = _images_of_classes(root, [name for _, name in present])
    return [
        (name, image, label) for (label, name), images in zip(present, listed) for image in images
    ]


def _images_of_classes(root, folders):
    """Returns the names of the images in each folder of `root`; logs other entries."""
    with ThreadPoolExecutor(16 if "://" in root else 1) as pool:
        listed = list(pool.map(lambda name: image_names(posixpath.join(root, name)), folders))
    others = [printable(path) for _, paths in listed for path in paths]
    if others:
        warn_once(
            f"{root}: skipped {len(others)} entries that are not image files "
            f"({', '.join(IMAGE_ENDINGS)}), such as {', '.join(others[:5])}"
        )
    return [images for images, _ in listed]


def has_no_splits(path: str | os.PathLike) -> bool:
    """Returns whether no subfolder of `path` is a split, so that `folder` divides its classes by a
    hash."""
    return not _SPLITS & set(visible_folders(existing_folder(path)))


def folder_splits(path: str | os.PathLike) -> dict[str, Source]:
    """Returns a dict with a source for each split in `path/<split>/<class>/*`, all with the same
    classes.

    If `path` has no split subfolders, the dict contains one source, with key "".
    """
    path = existing_folder(path)
    classes = {name: visible_folders(posixpath.join(path, name)) for name in visible_folders(path)}
    splits = [name for name in classes if classes[name]]
    without_classes = [name for name in classes if image_names(posixpath.join(path, name))[0]]
    if not splits or (without_classes and not _SPLITS & set(splits)):
        return {"": folder(path)}
    names = sorted({printable(name) for split in splits for name in classes[split]})
    return {
        split: folder(path, split, names) for split in dict.fromkeys([*splits, *without_classes])
    }


def split_of_folder(
    split, *, path="", class_names="", test_share=0.1, split_seed=0, groups="", fold=""
):
    """Loads a split of a folder.

    Args:
        path: folder of the images.
        class_names: path of a text file with one class name per line, in order; "" for the sorted
            names of subfolders.
        test_share: without split subfolders, the fraction of each class to hold out for testing.
        split_seed: without split subfolders, the seed that selects the held-out images.
        groups: regular expression with one group, such as `^([^_]+)_`, for file names; images with
            the same text there, for example of one patient, are never divided.
        fold: "2/5" tests on the second of five folds instead of `test_share`.
    """
    return folder(path, split, names_in(class_names), test_share, split_seed, groups, fold)


def split_of_images(split, *, path="", test_share=0.1, split_seed=0, groups="", fold=""):
    """Loads images without classes: those in `path/<split>` and its subfolders, or a hash-based
    split of `path`.

    Args:
        path: folder of the images.
        test_share: without split subfolders, the fraction of the images to hold out for testing.
        split_seed: without split subfolders, the seed that selects the held-out images.
        groups: regular expression with one group, such as `^([^_]+)_`, for file names; images with
            the same text there, for example of one patient, are never divided.
        fold: "2/5" tests on the second of five folds instead of `test_share`.
    """
    division = Division(test_share, split_seed, groups, fold)
    path = existing_folder(path)
    root = posixpath.join(path, split)
    hashed = bool(split) and not tf.io.gfile.isdir(root)
    root = path if hashed else root.rstrip("/")
    names = images_below(root)
    if hashed and split not in ("train", "test"):
        raise ValueError(
            f"`split` must be train, test, or a subfolder of {path!r}. Received: split={split!r}"
        )
    if hashed:
        names = [names[i] for i in division.indices(split, names, [""] * len(names))]
    else:
        division.check_unused(split, path)
    if not names:
        raise ValueError(
            f"`path` must contain images for each split. Received: path={path!r}, split={split!r}"
        )
    return file_source([posixpath.join(root, name) for name in names])
