"""Sources of in-memory images: arrays, scikit-learn's handwritten digits, and IDX files such as
MNIST's."""

import contextlib
import dataclasses
import gzip
import os
import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.source import (
    Source,
    check_labels,
    check_names,
    label_reader,
    parse_split,
    subset,
    white_of,
)
from keras_vit.data.sources.text_files import names_in


def arrays(
    images: np.ndarray, labels: np.ndarray, class_names: Sequence[str], max_value: float = 0
) -> Source:
    """Returns a source of images in memory.

    Args:
        images: pixel values `(N, H, W, C)`, integers or floats of at most `max_value`.
        labels: integers `(N,)` in [0, len(class_names)); or `(N, len(class_names))`, 1 for each
            class of an image and 0 for the others, which `loss="sigmoid"` requires.
        class_names: name of each class.
        max_value: value of a white pixel; 0 means 255 for uint8 and 65,535 for uint16. Required for
            other dtypes.

    Raises:
        ValueError: images or labels have the wrong shape or dtype, there are no images, a label or
            a pixel value is out of range, or `max_value` is required but 0.
    """
    images = np.asarray(images)
    labels = np.asarray(labels)
    names = check_names(class_names)
    if images.ndim != 4 or 0 in images.shape or images.dtype.kind not in "iuf":
        raise ValueError(
            "`images` must be numbers of shape (N, H, W, C), with no dimension of size 0. "
            f"Received: dtype={images.dtype}, shape={images.shape}"
        )
    max_value = white_of(images.dtype, max_value)
    labels = _checked_labels(labels, len(images), names)
    lowest = images.min()
    highest = images.max()
    if not (np.isfinite(lowest) and highest <= max_value):
        raise ValueError(
            f"`images` must be finite and at most `max_value`, {max_value}. Received: pixels from "
            f"{lowest} to {highest}"
        )
    image_tensor = tf.constant(images)
    label_of = label_reader(labels)

    def read(index):
        return {"image": image_tensor[index], "label": label_of(index)}

    return Source(
        read,
        len(images),
        names,
        max_value,
        # In-memory images all have the same size, so crops are off. Flips are off because arrays
        # are often digits.
        options={"train_crop": "none", "eval_crop": "none", "flip": "off"},
        labels=labels,
        checksum=lambda: zlib.crc32(images.tobytes()),
        empty_is_negative=labels.ndim == 2,
        multi_label=labels.ndim == 2,
    )


def _checked_labels(labels, images, names):
    """Returns valid labels as integers `(images,)` or Booleans `(images, classes)`."""
    if labels.ndim == 2:
        is_valid = labels.shape == (images, len(names)) and np.isin(labels, (0, 1)).all()
    else:
        is_valid = labels.shape == (images,) and labels.dtype.kind in "iu"
    if not is_valid:
        raise ValueError(
            f"`labels` must be {images} integers, or a row of {len(names)} zeros and ones for each "
            f"image. Received: dtype={labels.dtype}, shape={labels.shape}"
        )
    if labels.ndim == 2:
        return labels.astype(bool)
    check_labels(labels, names)
    return labels


def digits():
    """Returns the splits of scikit-learn's 1,797 digits, 8x8 pixels with values from 0 to 16, as a
    dict of sources."""
    # Import it here, because the import takes about a second.
    from sklearn.datasets import load_digits

    scans = load_digits()
    pixels = np.repeat(scans.images[..., None].astype(np.uint8), 3, axis=-1)  # (1797, 8, 8, 3)
    # The splits are part of the dataset: they do not depend on the seed of a run.
    train, test = _divide((pixels, scans.target), 360)
    tune_train, tune_val = _divide(train, 287)
    names = [str(name) for name in scans.target_names]
    parts = {"train": train, "test": test, "tune_train": tune_train, "tune_val": tune_val}
    return {
        split: arrays(images, labels, names, max_value=16)
        for split, (images, labels) in parts.items()
    }


def idx(path: str, class_names: Sequence[str] | None = None) -> dict[str, Source]:
    """Returns the splits of a folder of IDX files with MNIST's file names, plain or gzipped, as a
    dict of sources."""
    parts = {}
    for split, prefix in {"train": "train", "test": "t10k"}.items():
        images = _read_idx(os.path.join(path, f"{prefix}-images-idx3-ubyte"), 3)
        labels = _read_idx(os.path.join(path, f"{prefix}-labels-idx1-ubyte"), 1)
        parts[split] = images[..., None], labels.astype(np.int64)
    names = class_names or [str(label) for label in range(parts["train"][1].max() + 1)]
    # Omit the tuning splits if the dataset is too small for every class to be in both.
    with contextlib.suppress(ValueError):
        parts["tune_train"], parts["tune_val"] = _divide(
            parts["train"], len(parts["train"][1]) // 10
        )
    return {split: arrays(images, labels, names) for split, (images, labels) in parts.items()}


def _read_idx(path, dimensions):
    """Returns the array of an IDX file.

    The file contains two zero bytes, the dtype (uint8), the rank, the shape and the values.
    """
    found = next((name for name in (path, f"{path}.gz") if os.path.isfile(name)), None)
    if found is None:
        raise ValueError(
            f"--config.data.path must be a folder with IDX files. Received: no {path} or {path}.gz"
        )
    start = 4 + 4 * dimensions
    with contextlib.suppress(EOFError, gzip.BadGzipFile, zlib.error, ValueError):
        with (gzip.open if found.endswith(".gz") else open)(found, "rb") as file:
            content = file.read()
        shape = np.frombuffer(content, ">i4", dimensions, offset=4)
        values = np.frombuffer(content, np.uint8, offset=start).reshape(shape)
        has_magic_number = content[:4] == bytes([0, 0, 8, dimensions])
        if has_magic_number and values.shape == (*shape,) and values.size:
            return values
    raise ValueError(
        f"The file must be a complete IDX file of uint8 values with {dimensions} dimensions. "
        f"Received: {found}"
    )


def split_of_digits(split):
    """Loads a split of scikit-learn's digits."""
    return _split_of(digits(), "digits", split)


def split_of_idx(split, *, path="", class_names=""):
    """Loads a split of IDX files.

    Args:
        path: folder of the IDX files.
        class_names: path of a text file with one class name per line, in order; "" for numbers.
    """
    return _split_of(idx(path, names_in(class_names)), "idx", split)


def _split_of(splits, dataset, split):
    """Returns one of the `splits`, or a class-balanced part of it, as in "train[:100]"."""
    split, count = parse_split(
        dataset, split, {part: source.num_examples for part, source in splits.items()}
    )
    source = subset(splits[split], _first_of_each_class(splits[split].labels, count))
    # Name the parts of "train", so that a test split that overlaps them is found.
    parts = ("tune_train", "tune_val") if split == "train" else (split,)
    return dataclasses.replace(source, stored=lambda: [(part, 0, 1) for part in parts])


def _first_of_each_class(labels, count):
    """Returns the indices of `count` examples, balanced over classes; a larger `count` only adds
    examples."""
    rank = np.zeros(len(labels), int)  # number of earlier examples of the same class
    for label in np.unique(labels):
        has_label = labels == label
        rank[has_label] = np.arange(has_label.sum())
    return np.sort(np.lexsort((labels, rank))[:count])


def _divide(images_and_labels, size):
    """Divides images and labels into two stratified parts; the second part has `size` examples."""
    from sklearn.model_selection import train_test_split

    labels = images_and_labels[1]
    divided = train_test_split(*images_and_labels, test_size=size, random_state=0, stratify=labels)
    return divided[::2], divided[1::2]
