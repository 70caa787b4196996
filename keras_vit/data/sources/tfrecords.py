"""Sources of TFRecords of `tf.train.Example` with images and classes."""

import contextlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_vit.data.sources.record_files import (
    RecordIndex,
    first_example,
    pattern_of,
    record_source,
)
from keras_vit.data.sources.source import Source, check_names, white_of
from keras_vit.data.sources.text_files import names_in

_CHECKED = 100  # number of records whose lists of classes are checked before training


def tfrecords(
    pattern: str,
    class_names: Sequence[str],
    image_key: str = "image/encoded",
    label_key: str = "image/class/label",
    label_offset: int = 0,
    num_examples: int = 0,
    image_dtype: str = "",
    image_shape: Sequence[int] = (),
    max_value: float = 0,
    multi_label: bool = False,
) -> Source:
    """Returns a source of uncompressed TFRecords of `tf.train.Example`.

    Local files are indexed in one pass over the lengths of their records. Remote files are read in
    order; their records are counted once, which downloads the files, and the counts are cached in
    Keras' cache folder.

    Args:
        pattern: file name pattern, such as `train-*-of-01024`, local or remote (`gs://`).
        class_names: name of each class.
        image_key: name of the bytes feature with the image, or comma-separated names of several
            such features, such as "B02,B03,B08", whose channels are concatenated.
        label_key: name of the feature with the integer label.
        label_offset: stored label of the first class; labels in ImageNet's files start at 1.
        num_examples: expected number of records; 0 if unknown.
        image_dtype: "" for encoded images, or the dtype of raw pixel values, such as "uint16". Raw
            values are stored by `tf.io.serialize_tensor`, or as little-endian bytes if
            `image_shape` is set.
        image_shape: `(H, W, C)` or `(H, W)` of the raw pixel values in each feature; () for encoded
            images and for values stored by `tf.io.serialize_tensor`.
        max_value: value of a white pixel in raw pixel values; 0 means 255 for uint8 and 65,535 for
            uint16. Required for other dtypes.
        multi_label: whether the label feature is a list with the numbers of all classes of the
            image, which may be empty.

    Raises:
        ValueError: an argument is invalid, no file matches, a file is damaged, the number of
            records is not `num_examples`, or the first local record lacks a feature or has a label
            out of range. Other records that lack a feature count as bad examples; a label out of
            range ends the iteration over their batches.
    """
    class_names = check_names(class_names)
    image_keys = [key.strip() for key in image_key.split(",")]
    image_of = _image_reader(image_keys, image_dtype, tuple(image_shape), max_value)
    features = {key: tf.io.FixedLenFeature([], tf.string) for key in image_keys}
    one_label = tf.io.FixedLenFeature([], tf.int64)
    features[label_key] = tf.io.VarLenFeature(tf.int64) if multi_label else one_label

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        label = example[label_key].values if multi_label else example[label_key]
        return {"image": image_of(example), "label": label - label_offset}

    source = record_source(
        pattern,
        parse,
        num_examples,
        class_names=class_names,
        max_value=white_of(image_dtype or "uint8", max_value),
        empty_is_negative=multi_label,
        multi_label=multi_label,
    )
    first = first_example(
        source,
        "the features of --config.data.image_key (bytes) and --config.data.label_key (an integer, "
        "or any number of them with --config.data.multi_label)",
    )
    if first is not None:
        _check_range(first, source)
    if multi_label and source.read is not None and tf.executing_eagerly():
        _check_lists(source, label_key)
    return source


def split_of_tfrecords(
    split,
    *,
    path="",
    classes=0,
    class_names="",
    image_key="",
    label_key="",
    label_offset=0,
    num_examples=0,
    image_dtype="",
    image_shape=(),
    max_value=0.0,
    multi_label=False,
):
    """Loads the TFRecords whose names match `split`.

    Args:
        path: folder of the TFRecords; "" if the patterns contain it.
        classes: number of classes.
        class_names: path of a text file with one class name per line, in order; "" for numbers.
        image_key: name of the image feature; "" for "image/encoded".
        label_key: name of the label feature; "" for "image/class/label".
        label_offset: number to subtract from stored labels.
        num_examples: expected number of records, in a config those of `train_split`; 0 if unknown.
        image_dtype: dtype of raw pixel values; "" for encoded images.
        image_shape: shape of raw pixel values, `(H, W, C)` or `(H, W)`.
        max_value: value of a white pixel in raw pixel values; 0 for the default of the dtype.
        multi_label: whether the label feature is a list with the numbers of all classes of the
            image, which may be empty.
    """
    pattern = pattern_of(split, path)
    names = names_in(class_names) or tuple(map(str, range(classes)))
    if not names:
        raise ValueError(
            "`classes` or `class_names` must be set for TFRecords. Received: "
            f"classes={classes}, class_names=''"
        )
    if classes not in (0, len(names)):
        raise ValueError(
            "`classes` must be 0 or the number of names in `class_names`. "
            f"Received: classes={classes}, {len(names)} names in class_names={class_names!r}"
        )
    return tfrecords(
        pattern,
        names,
        image_key or "image/encoded",
        label_key or "image/class/label",
        label_offset=label_offset,
        num_examples=num_examples,
        image_dtype=image_dtype,
        image_shape=image_shape,
        max_value=max_value,
        multi_label=multi_label,
    )


def _check_range(first, source):
    """Raises a `ValueError` if a value of the first example is out of range."""
    classes = len(source.class_names)
    labels = first["label"].numpy()
    if np.any((labels < 0) | (labels >= classes)):
        raise ValueError(
            f"Labels minus --config.data.label_offset must be from 0 to {classes - 1}. "
            f"Received: {labels} in {source.name_of(0)}"
        )
    highest = 0 if source.is_encoded else first["image"].numpy().max()
    if highest > source.max_value:
        raise ValueError(
            "Pixel values must be at most --config.data.max_value. Received: "
            f"max_value={source.max_value}, {highest} in {source.name_of(0)}"
        )


def _check_lists(source, label_key):
    """Raises a `ValueError` if the labels of the first records are not lists of class numbers.

    A record without the feature is an image without a class, but some record must have it.
    """
    file = source.stored()[0][0]
    index = RecordIndex([file], [0], [_CHECKED])
    lists = set()
    for i in range(len(index)):
        with contextlib.suppress(tf.errors.DataLossError, DecodeError):  # a bad example
            record = index.read(tf.constant(i)).numpy()
            features = tf.train.Example.FromString(record).features.feature
            if label_key in features:
                lists.add(tuple(features[label_key].int64_list.value))
    if not lists:
        raise ValueError(
            "Records must have the feature of --config.data.label_key, a list of class numbers. "
            f"Received: no {label_key!r} in the first records of {file!r}"
        )
    repeated = [labels for labels in lists if len(set(labels)) < len(labels)]
    # Zeros and ones for two exclusive classes look like lists with both classes.
    if len(source.class_names) == 2 and lists in ({(1, 0)}, {(1, 0), (0, 1)}):
        repeated = sorted(lists)
    if repeated:
        raise ValueError(
            "With --config.data.multi_label, a label must be a list of different class numbers, "
            "not of zeros and ones: [0] for the first class, [0, 1] for the first two. Received: "
            f"{list(repeated[0][:20])} in the first records of {file!r}"
        )


def _image_reader(keys, dtype, shape, max_value):
    """Returns a function that maps the features of an example to its image."""
    if not dtype:
        if shape or max_value:
            raise ValueError(
                "`image_dtype` must be set with `image_shape` or `max_value`, which describe raw "
                f"pixel values. Received: image_shape={shape}, max_value={max_value}, "
                "image_dtype=''"
            )
        if len(keys) == 1:
            return lambda example: example[keys[0]]
        return lambda example: tf.stack([example[key] for key in keys])
    try:
        pixel_dtype = tf.as_dtype(dtype)
    except TypeError:
        pixel_dtype = tf.string
    if not (pixel_dtype.is_integer or pixel_dtype.is_floating):
        raise ValueError(
            f"`image_dtype` must be '' or a numeric dtype. Received: image_dtype={dtype!r}"
        )
    if shape and (len(shape) not in (2, 3) or min(shape) < 1):
        raise ValueError(
            "`image_shape` must be (), (H, W) or (H, W, C), with sides of 1 or more. Received: "
            f"image_shape={shape}"
        )

    def values(encoded):
        # A single channel may be stored as `(H, W)`.
        if shape:
            pixels = tf.io.decode_raw(encoded, pixel_dtype)
            return tf.reshape(pixels, (*shape, 1)[:3])
        tensor = tf.io.parse_tensor(encoded, pixel_dtype)
        return tf.reshape(tensor, tf.ensure_shape(tf.concat([tf.shape(tensor), [1]], 0)[:3], [3]))

    return lambda example: tf.concat([values(example[key]) for key in keys], -1)
