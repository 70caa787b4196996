"""Checks and copies the teachers of distillation, and converts images for them."""

import hashlib
import json

import keras
import numpy as np
from keras import ops

from keras_vit.checkpoints.position_embeddings import RULES
from keras_vit.models.any_model import (
    check_images_known,
    image_shape_of,
    last_activation_of,
    logits_activation_of,
    output_shape_of,
    weights_digest,
)
from keras_vit.models.image_model import ImageModel
from keras_vit.preprocessing import preprocessing_of


def check_logits(teacher, source):
    """Raises a `ValueError` unless a teacher, loaded from `source`, returns logits of a softmax."""
    activation = last_activation_of(teacher)
    problems = {
        "no head": getattr(teacher, "head", teacher) is None,
        "logits of a sigmoid": logits_activation_of(teacher) == "sigmoid",
        f"{activation} outputs": activation != "linear",
    }
    if any(problems.values()):
        raise ValueError(
            "`teacher` must return logits of a softmax, or set --config.distillation.loss="
            f"cosine to imitate its features. Received: teacher={source!r}, which has "
            f"{' and '.join(name for name, holds in problems.items() if holds)}"
        )


def without_head(teacher):
    """Returns a model whose outputs are the features of a teacher: the input of its head, if it has
    one, or else its outputs."""
    head = getattr(teacher, "head", None)
    return teacher if head is None else keras.Model(teacher.input, head.input)


def width_of(teacher, source):
    """Returns the number of outputs per image; raises a `ValueError` if these are not one row."""
    shape = output_shape_of(teacher)
    if isinstance(shape, list) or len(shape) != 2:
        raise ValueError(
            f"`teacher` must return one row for each image. Received: teacher={source!r}, "
            f"outputs of shape {shape}"
        )
    return int(shape[-1])


def digest_of(teacher):
    """Returns the SHA-256 of a teacher's weights, image shape and preprocessing, in hexadecimal."""
    expects = json.dumps([preprocessing_of(teacher).to_config(), check_images_known(teacher)])
    return hashlib.sha256((weights_digest(teacher) + expects).encode()).hexdigest()


def copy_of(teacher, precision):
    """Copies a model to variables of the current strategy, which are not trained."""
    config = teacher.get_config()
    if isinstance(teacher, ImageModel):
        config["dtype"] = precision
    copy = type(teacher).from_config(config)
    copy.set_weights(teacher.get_weights())
    copy.trainable = False
    return copy


def images_for(teacher, images, preprocessing):
    """Returns images `(B, H, W, C)`, which were prepared by `preprocessing`, as a teacher expects
    them."""
    factor, offset = _conversion(preprocessing, preprocessing_of(teacher))
    images = images * factor + offset  # a gray image gets all channels
    for axis, equation in ((0, "ij,bjwc->biwc"), (1, "ij,bhjc->bhic")):
        old = images.shape[1 + axis]
        new = image_shape_of(teacher)[axis]
        if old != new:
            matrix = RULES["bilinear_antialias"](old, new).astype("float32")
            images = ops.einsum(equation, matrix, images)
    return images


def _conversion(own, theirs):
    """Returns float32 `(factor, offset)` for each channel, from one `Preprocessing` to another."""
    scale = (2**theirs.bit_depth - 1) / (2**own.bit_depth - 1)
    mean, std = (np.array(values, "float64") for values in (own.mean, own.std))
    factor = scale * std / np.array(theirs.std)
    offset = (scale * mean - np.array(theirs.mean)) / np.array(theirs.std)
    return factor.astype("float32"), offset.astype("float32")


def compare_classes(names, known, source, write):
    """Compares the names of the data's classes with those of a teacher's outputs, by position.

    Writes a warning for names that the teacher does not have, and raises a `ValueError` for names
    at other positions. `known` is empty if the teacher's names are unknown.
    """
    pairs = [pair for pair in zip(names, known) if pair[0].casefold() != pair[1].casefold()]
    folded = {name.casefold() for name in known}
    moved = [f"{ours} instead of {theirs}" for ours, theirs in pairs if ours.casefold() in folded]
    if moved:
        raise ValueError(
            "The data must have the classes in the teacher's order. Received: classes "
            f"{', '.join(moved[:5])}, teacher={source!r}"
        )
    shown = ", ".join(f"{ours} with {theirs}" for ours, theirs in pairs[:3])
    if pairs or not known:
        write(
            "warning: the classes of the data are compared with the teacher's outputs by position: "
            f"{shown or 'the names of its outputs are unknown'}"
        )
