"""Sources of images that have a second file with a value for each pixel: a mask or depths."""

import dataclasses
import os
import posixpath

import tensorflow as tf

from keras_vit.data.sources.division import Division
from keras_vit.data.sources.file_lists import rows_of
from keras_vit.data.sources.listing import (
    IMAGE_ENDINGS,
    entries,
    names_in,
    printable,
    visible_folders,
)
from keras_vit.data.sources.source import Source, check_names, checksum_of
from keras_vit.data.sources.tfds import tfds
from keras_vit.files import is_dir

ENDINGS = {"mask": (".png",), "depth": (".png", ".npy")}
_FOLDERS = {"mask": "masks", "depth": "depth"}  # also the names of the target kinds


@dataclasses.dataclass(frozen=True)
class PairSource(Source):
    """A source whose examples have an image and a second file.

    Attributes:
        missing: paths of files whose partner does not exist. Their examples are unreadable.
    """

    missing: tuple[str, ...] = ()


def split_of_masks(
    split, *, path="", class_names="", test_share=0.1, split_seed=0, groups="", fold=""
):
    """Loads images and masks: pairs of files with the same stem in `path/<split>/images` and
    `path/<split>/masks`, in `path/images/<split>` and `path/masks/<split>`, or a hash-based split
    of `path/images` and `path/masks`; or the pairs in a CSV file.

    Args:
        path: folder with the subfolders `images` and `masks`.
        class_names: path of a text file with one class name per line, in the order of the class
            numbers; "" for the file `classes.txt` in `path`.
        test_share: without split subfolders, the fraction of the images to hold out for testing.
        split_seed: without split subfolders, the seed that selects the held-out images.
        groups: regular expression with one group, such as `^([^_]+)_`, for file names; images with
            the same text there, for example of one patient, are never divided.
        fold: "2/5" tests on the second of five folds instead of `test_share`.
    """
    names = class_names or posixpath.join(path, "classes.txt")
    if isinstance(names, str) and not tf.io.gfile.exists(names):
        raise ValueError(
            "Masks need the names of their classes, one per line in the order of the class "
            "numbers, in `path`/classes.txt or in --config.data.class_names=FILE. Received: no "
            f"file {names!r}"
        )
    division = Division(test_share, split_seed, groups, fold)
    return _pairs("mask", split, path, check_names(names_in(names)), division)


def split_of_depth(split, *, path="", test_share=0.1, split_seed=0, groups="", fold=""):
    """Loads images and depths, 16-bit PNG or .npy files, like masks, from the folders `images` and
    `depth`.

    Args:
        path: folder with the subfolders `images` and `depth`.
        test_share: without split subfolders, the fraction of the images to hold out for testing.
        split_seed: without split subfolders, the seed that selects the held-out images.
        groups: regular expression with one group, such as `^([^_]+)_`, for file names; images with
            the same text there, for example of one patient, are never divided.
        fold: "2/5" tests on the second of five folds instead of `test_share`.
    """
    division = Division(test_share, split_seed, groups, fold)
    return _pairs("depth", split, path, (), division)


def split_of_tfds_masks(split, name, *, path="", class_names="", image_key="", label_key=""):
    """Loads images and masks of a dataset of TFDS.

    Args:
        path: data folder of TFDS; "" for the default.
        class_names: path of a text file with one class name per line, in order.
        image_key: name of the image feature; "" for "image".
        label_key: name of the feature with the masks; "" for "segmentation_mask".
    """
    label_key = label_key or "segmentation_mask"

    def mask_of(features):
        if label_key not in features:
            raise ValueError(
                f"{name} has the features {sorted(features)}. Received: label_key={label_key!r}"
            )
        return features[label_key]

    names = names_in(class_names)
    source = tfds(name, split, path, image_key or "image", mask_of, names)

    def renamed(example):
        return {"image": example["image"], "mask": example["label"]}

    source = dataclasses.replace(source, target="masks")
    read, shards = source.read, source.shards
    if read is not None:
        return dataclasses.replace(source, read=lambda index: renamed(read(index)))
    parse = shards.parse
    shards = dataclasses.replace(shards, parse=lambda record: renamed(parse(record)))
    return dataclasses.replace(source, shards=shards)


def _pairs(key, split, path, class_names, division):
    """Returns the `PairSource` of a split; `key` is "mask" or "depth"."""
    if split.endswith(".csv"):
        division.check_unused(split, path)
        return _source(key, _listed(split, path), class_names)
    roots = [posixpath.join(path, folder) for folder in ("images", _FOLDERS[key])]
    of_split = [posixpath.join(path, split, folder) for folder in ("images", _FOLDERS[key])]
    for inside in (of_split, [posixpath.join(root, split) for root in roots]):
        if split and is_dir(inside[0]):
            division.check_unused(split, path)
            return _source(key, _paired(key, *inside), class_names)
    if not all(map(is_dir, roots)) or split not in ("", "train", "test"):
        raise ValueError(
            f"`path` must have the subfolders images and {_FOLDERS[key]}, or a subfolder for each "
            "split that has them; or `train_split` and `test_split` must be CSV files with an "
            f"image and its {key} in each row. Received: path={path!r}, split={split!r}"
        )
    pairs = _paired(key, *roots)
    if split:
        stems = [*pairs]
        part = division.indices(split, stems, [""] * len(stems))
        pairs = {stems[i]: pairs[stems[i]] for i in part}
    return _source(key, pairs, class_names)


def _paired(key, image_root, target_root):
    """Returns `{stem: (image, second file)}` of two folders; the path of a missing file has no
    ending."""
    images = _files_by_stem(image_root, IMAGE_ENDINGS)
    targets = _files_by_stem(target_root, ENDINGS[key])
    return {
        stem: (
            posixpath.join(image_root, images.get(stem, stem)),
            posixpath.join(target_root, targets.get(stem, stem)),
        )
        for stem in sorted(images | targets)
    }


def _files_by_stem(root, endings):
    """Returns `{stem: file}` of the files below a folder that have one of the endings."""
    names = _files_below(root) if is_dir(root) else []
    file_of = {}
    for name in names:
        if not name.lower().endswith(endings):
            continue
        stem = posixpath.splitext(name)[0]
        if stem in file_of:
            raise ValueError(
                "Files of one folder must have different names without their endings. "
                f"Received: {file_of[stem]!r} and {name!r} in {root!r}"
            )
        file_of[stem] = name
    return file_of


def _files_below(root):
    """Returns the visible files in a folder and its visible subfolders, relative to it."""
    inside = [
        posixpath.join(folder, name)
        for folder in visible_folders(root)
        for name in _files_below(posixpath.join(root, folder))
    ]
    return [name for name in entries(root)[1] if not name.startswith(".")] + inside


def _listed(split, path):
    """Returns `{line: (image, second file)}` of the CSV file `split`, whose names start from its
    folder."""
    is_absolute = posixpath.isabs(split) or "://" in split
    list_path = split if is_absolute else posixpath.join(path, split)
    root = posixpath.dirname(list_path) or "."
    return {
        str(line): tuple(name if "://" in name else posixpath.join(root, name) for name in pair)
        for line, *pair in rows_of(list_path)
    }


def _source(key, pairs, class_names):
    """Returns the `PairSource` of `{stem: (image, second file)}`."""
    if not pairs:
        raise ValueError(
            "Each split must have images. Received: a split without pairs of an image and a "
            f"{key} file ({', '.join(ENDINGS[key])})"
        )
    image_paths, target_paths = zip(*pairs.values())
    present = set(_present({*image_paths, *target_paths}))
    tensors = [tf.constant([*map(os.fsencode, paths)]) for paths in (image_paths, target_paths)]
    known = [image if image in present else target for image, target in pairs.values()]

    def read(index):
        contents = [tf.io.read_file(paths[index]) for paths in tensors]
        return dict(zip(("image", key), contents))

    return PairSource(
        read,
        len(pairs),
        class_names,
        name_of=lambda index: printable(known[index]),
        checksum=lambda: checksum_of([*image_paths, *target_paths]),
        stored=lambda: ((path, 0, 1) for path in image_paths),
        target=_FOLDERS[key],
        missing=tuple(name for name, pair in zip(known, pairs.values()) if {*pair} - present),
    )


def _present(paths):
    """Yields the paths that exist; lists the folders, which is faster than checking each file."""
    for folder in {posixpath.dirname(path) for path in paths}:
        if is_dir(folder):
            yield from (posixpath.join(folder, name) for name in entries(folder)[1])
