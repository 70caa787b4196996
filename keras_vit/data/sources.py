"""Where examples come from: every source gives them by index."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Source:
    """Labelled images that can be asked for by index.

    Attributes:
        read: from a scalar int64 tensor in [0, num_examples) to `{"image": uint8 (H, W, 3), "label": int64}`; runs
            inside `tf.data`.
        num_examples: how many there are.
        class_names: the name of each label, in order.
        max_value: the value of a white pixel; 255 for most, 16 for the digits.
    """

    read: Callable
    num_examples: int
    class_names: tuple
    max_value: int = 255


def arrays(images, labels, class_names, max_value=255):
    """A source of images held in memory.

    Args:
        images: uint8 `(N, H, W, 3)`, values in [0, max_value].
        labels: integers `(N,)` in [0, len(class_names)).
        class_names: a name for each class.
        max_value: the value of a white pixel.

    Raises:
        ValueError: images are not uint8 of that shape, there are none, their number is not that of the labels, or a
            label or a pixel is out of range.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or not len(images):
        raise ValueError(
            "`images` must be uint8 (N, H, W, 3) with N of 1 or more. "
            f"Received: dtype={images.dtype}, shape={images.shape}"
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"`labels` must be {len(images)} integers, one for each image. "
            f"Received: dtype={labels.dtype}, shape={labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= len(class_names):
        raise ValueError(
            f"Labels of {len(class_names)} classes are 0 to {len(class_names) - 1}. "
            f"Received: labels from {labels.min()} to {labels.max()}"
        )
    if images.max() > max_value:
        raise ValueError(f"Pixels must not exceed `max_value`, {max_value}. Received: a pixel of {images.max()}")
    images, labels = tf.constant(images), tf.constant(labels, tf.int64)

    def read(index):
        return {"image": images[index], "label": labels[index]}

    return Source(read, images.shape[0], tuple(class_names), max_value)


def load(name):
    """The train and the test source of a dataset, by name.

    Args:
        name: "digits", the 1,797 handwritten digits (8x8 pixels of 0 to 16) that come with scikit-learn, of which a
            fixed 360 are the test set.

    Raises:
        ValueError: the name is not known.
    """
    if name != "digits":
        raise ValueError(f"The datasets known by name are: digits. Received: name={name!r}")
    return _digits()


def _digits():
    # scikit-learn takes about a second to import, and only this dataset needs it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = np.repeat(digits.images[..., None].astype(np.uint8), 3, axis=-1)  # (1797, 8, 8, 3)
    # The split is part of the dataset: it does not follow the seed of a run.
    split = train_test_split(images, digits.target, test_size=360, random_state=0, stratify=digits.target)
    train_images, test_images, train_labels, test_labels = split
    names = [str(name) for name in digits.target_names]
    return (
        arrays(train_images, train_labels, names, max_value=16),
        arrays(test_images, test_labels, names, max_value=16),
    )
