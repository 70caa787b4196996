"""Images held in memory, and the handwritten digits that come with scikit-learn."""

import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.source import WHITE, Source, check_labels, white_of


def arrays(images: np.ndarray, labels: np.ndarray, class_names: Sequence[str], max_value: float = 0) -> Source:
    """A source of images held in memory.

    Args:
        images: `(N, H, W, C)` of real numbers up to `max_value`.
        labels: integers `(N,)` in [0, len(class_names)).
        class_names: a name for each class.
        max_value: the value of a white pixel; 0 for 255 of uint8 and 65,535 of uint16. Other dtypes need it.

    Raises:
        ValueError: images are not of that shape or of such a dtype, there are none, their number is not that of the
            labels, or a label or a pixel is out of range.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    known_white = max_value or images.dtype.name in WHITE
    if images.ndim != 4 or 0 in images.shape or images.dtype.kind not in "iuf" or not known_white:
        raise ValueError(
            "`images` must be uint8 or uint16 (N, H, W, C), or other numbers with `max_value`, with N of 1 or more. "
            f"Received: dtype={images.dtype}, shape={images.shape}, max_value={max_value}"
        )
    max_value = white_of(images.dtype, max_value)
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"`labels` must be {len(images)} integers, one for each image. "
            f"Received: dtype={labels.dtype}, shape={labels.shape}"
        )
    check_labels(labels, class_names)
    lowest, highest = images.min(), images.max()
    if not (np.isfinite(lowest) and highest <= max_value):
        extreme = highest if np.isfinite(lowest) else lowest
        raise ValueError(
            f"Pixels must be finite and not exceed `max_value`, {max_value}. Received: a pixel of {extreme}"
        )
    image_tensor, label_tensor = tf.constant(images), tf.constant(labels, tf.int64)

    def read(index):
        return {"image": image_tensor[index], "label": label_tensor[index]}

    return Source(
        read,
        len(images),
        tuple(class_names),
        max_value,
        labels=labels,
        checksum=lambda: zlib.crc32(images.tobytes()),
        # They are ready as they are: nothing is cropped, and a mirrored 2 is not a 2.
        options={"train_crop": "none", "eval_crop": "none", "flip": "off"},
    )


def digits():
    """The 1,797 handwritten digits of scikit-learn, 8x8 pixels of 0 to 16: 1,437 to train, a fixed 360 to test.

    Returns a dict of sources: "train", "test", "tune_train" and "tune_val"; the last two divide "train" into 1,150 and
    287.
    """
    # scikit-learn takes about a second to import, and only this dataset needs it.
    from sklearn.datasets import load_digits

    scans = load_digits()
    images = np.repeat(scans.images[..., None].astype(np.uint8), 3, axis=-1)  # (1797, 8, 8, 3)
    # The split is part of the dataset: it does not follow the seed of a run.
    train, test = _divide((images, scans.target), 360)
    tune_train, tune_val = _divide(train, 287)
    names = [str(name) for name in scans.target_names]
    parts = {"train": train, "test": test, "tune_train": tune_train, "tune_val": tune_val}
    return {split: arrays(*part, names, max_value=16) for split, part in parts.items()}


def first_of_each_class(labels, count):
    """The indices of `count` examples, as many of each class as there are, with those of any smaller count."""
    rank = np.zeros(len(labels), int)  # how many of its class stand before an example
    for label in np.unique(labels):
        rank[labels == label] = np.arange(np.count_nonzero(labels == label))
    return np.sort(np.lexsort((labels, rank))[:count])


def _divide(part, size):
    """Images and labels in two parts, the second of `size` examples, with every class in both."""
    from sklearn.model_selection import train_test_split

    images, labels = part
    split = train_test_split(images, labels, test_size=size, random_state=0, stratify=labels)
    return (split[0], split[2]), (split[1], split[3])
