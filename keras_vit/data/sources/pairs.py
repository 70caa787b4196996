"""Sources of images that have a second file with a value for each pixel: a mask or depths."""

import dataclasses
import os
import posixpath

import tensorflow as tf

from keras_vit.data.sources.division import HASHED, Division
from keras_vit.data.sources.folders import has_no_splits
from keras_vit.data.sources.listing import IMAGE_ENDINGS, existing, files_below, printable
from keras_vit.data.sources.source import Source, check_names, checksum_of
from keras_vit.data.sources.tables import Files, read_table
from keras_vit.data.sources.text_files import names_in
from keras_vit.data.sources.tfds import open_split, stored_source
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


def split_of_masks(split, *, path="", class_names="", **division):
    """Loads images and masks: pairs of files with the same stem in `path/<split>/images` and
    `path/<split>/masks`, in `path/images/<split>` and `path/masks/<split>`, or a hash-based split
    of `path/images` and `path/masks`; or the pairs in a CSV file.

    Args:
        path: folder with the subfolders `images` and `masks`.
        class_names: path of a text file with one class name per line, in the order of the class
            numbers; "" for the file `classes.txt` in `path`.
        **division: fields of `Division`.
    """
    names = class_names or posixpath.join(path, "classes.txt")
    if isinstance(names, str) and not tf.io.gfile.exists(names):
        raise ValueError(
            "Masks need the names of their classes, one per line in the order of the class "
            "numbers, in `path`/classes.txt or in --config.data.class_names=FILE. Received: no "
            f"file {names!r}"
        )
    return _pairs("mask", split, path, check_names(names_in(names)), Division(**division))


def split_of_depth(split, *, path="", **division):
    """Loads images and depths, 16-bit PNG or .npy files, like masks, from the folders `images` and
    `depth`.

    Args:
        path: folder with the subfolders `images` and `depth`.
        **division: fields of `Division`.
    """
    return _pairs("depth", split, path, (), Division(**division))


def split_of_tfds_masks(split, name, *, path="", class_names="", image_key="", label_key=""):
    """Loads images and masks of a dataset of TFDS.

    Args:
        path: data folder of TFDS; "" for the default.
        class_names: path of a text file with one class name per line, in order.
        image_key: name of the image feature; "" for "image".
        label_key: name of the feature with the masks; "" for "segmentation_mask".
    """
    image_key = image_key or "image"
    label_key = label_key or "segmentation_mask"
    stored = open_split(name, split, path, [image_key, label_key])
    names = check_names(names_in(class_names) or ())

    def example_of(values):
        return {"image": values[image_key], "mask": tf.cast(values[label_key], tf.int64)}

    return stored_source(stored, example_of, class_names=names, target="masks")


def _pairs(key, split, path, class_names, division):
    """Returns the `PairSource` of a split; `key` is "mask" or "depth"."""
    folders = ("images", _FOLDERS[key])
    roots = [posixpath.join(path, folder) for folder in folders]
    layouts = [
        [posixpath.join(path, split, folder) for folder in folders],
        [posixpath.join(root, split) for root in roots],
    ]
    stored = [layout for layout in layouts if split and is_dir(layout[0])]
    if stored or split.endswith(".csv"):
        division.check_unused(split, path)
        pairs = _paired(key, *stored[0]) if stored else _listed(key, split, path)
        return _source(key, pairs, class_names)
    has_folders = all(map(is_dir, roots))
    is_hashed = has_folders and split in HASHED and has_no_splits(roots[0])
    if not has_folders or (split and not is_hashed):
        raise ValueError(
            f"`path` must have the subfolders images and {_FOLDERS[key]}, which have subfolders "
            "for both splits or for none, or a subfolder for each split that has them; or "
            f"`train_split` and `test_split` must be CSV files with an image and its {key} in each "
            f"row. Received: path={path!r}, split={split!r}"
        )
    pairs = _paired(key, *roots)
    if is_hashed:
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
    names = files_below(root, endings)
    file_of = {posixpath.splitext(name)[0]: name for name in names}
    if hidden := sorted({*names} - {*file_of.values()}):
        raise ValueError(
            "Files of one folder must have different names without their endings. Received: "
            f"{hidden[:10]} and others of these names in {root!r}"
        )
    return file_of


def _listed(key, split, path):
    """Returns `{line: (image, second file)}` of the CSV file `split`, whose names start from its
    folder."""
    list_path = split if "://" in split else posixpath.join(path, split)
    files = Files(posixpath.dirname(list_path) or ".")
    rows, class_columns = read_table(list_path, files, usual_label=key)
    if class_columns:
        raise ValueError(
            f"The list must have a column named {key}. Received: no such column in {list_path!r}"
        )
    return {str(row.line): (files.path(row.file), files.path(row.label)) for row in rows}


def _source(key, pairs, class_names):
    """Returns the `PairSource` of `{stem: (image, second file)}`."""
    if not pairs:
        raise ValueError(
            "Each split must have images. Received: a split without pairs of an image and a "
            f"{key} file ({', '.join(ENDINGS[key])})"
        )
    image_paths, target_paths = zip(*pairs.values())
    present = existing([*image_paths, *target_paths])
    tensors = [tf.constant([*map(os.fsencode, paths)]) for paths in (image_paths, target_paths)]
    # The name of a pair is that of its image, or of its other file if the image is missing.
    names = [image if image in present else target for image, target in pairs.values()]

    def read(index):
        contents = [tf.io.read_file(paths[index]) for paths in tensors]
        return dict(zip(("image", key), contents))

    return PairSource(
        read,
        len(pairs),
        class_names,
        name_of=lambda index: printable(names[index]),
        checksum=lambda: checksum_of([*image_paths, *target_paths]),
        stored=lambda: ((path, 0, 1) for path in image_paths),
        target=_FOLDERS[key],
        missing=tuple(name for name, pair in zip(names, pairs.values()) if {*pair} - present),
    )
