"""Images of one color per class and models that classify them, for the tests of evaluators."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit import data

from ..shared import SIZES

CLASSES = 3
COLORS = np.array([[200, 30, 30], [30, 200, 30], [30, 30, 200]])


def color_inputs(train=60, test=11, classes=CLASSES):
    """Returns an input pipeline with one color per class, for up to three classes.

    The colors are so different that even a model with random weights separates them.
    """
    random = np.random.default_rng(0)
    names = [f"class {i}" for i in range(classes)]

    def source(count):
        labels = random.permutation(np.arange(count) % classes)
        noise = random.integers(-25, 25, (count, 8, 8, 3))
        images = COLORS[labels % 3][:, None, None] + noise
        return data.arrays(images.astype("uint8"), labels, names)

    return data.InputPipeline(
        source(train), source(test), {}, batch_size=4, seed=0, max_bad_share=0.0
    )


def mean_color_model():
    """Returns a model whose three logits are 10 times the channel means of an image."""
    images = keras.Input((8, 8, 3))
    x = keras.layers.GlobalAveragePooling2D()(images)
    head = keras.layers.Dense(3, kernel_initializer="identity", name="head")
    return keras.Model(images, head(10 * x))


def small_vit(**changes):
    """Returns a random Vision Transformer for the images of `color_inputs`."""
    arguments = {**SIZES, "input_shape": (8, 8, 3), "classes": CLASSES, **changes}
    return keras_vit.VisionTransformer(**arguments)


def with_labels(inputs, label_of, **changes):
    """Returns inputs whose test examples have the labels `label_of(index)`, unknown before they are
    read."""
    read = inputs.test.read

    def read_relabeled(index):
        return {**read(index), "label": label_of(index)}

    test = dataclasses.replace(inputs.test, read=read_relabeled, labels=None, **changes)
    return dataclasses.replace(inputs, test=test)


def unreadable(inputs, split, broken):
    """Returns inputs with encoded images in `split`. Those at the indices `broken` are damaged."""
    source = getattr(inputs, split)

    def read(index):
        example = source.read(index)
        is_broken = tf.reduce_any(tf.constant(broken, tf.int64) == index)
        file = tf.io.encode_png(example["image"])
        return {**example, "image": tf.where(is_broken, b"no image", file)}

    changes = {
        split: dataclasses.replace(source, read=read),
        "options": {"image_size": 8, "train_crop": "resize", "eval_crop": "resize"},
        "max_bad_share": 0.1,
    }
    return dataclasses.replace(inputs, **changes)
