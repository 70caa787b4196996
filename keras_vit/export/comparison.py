"""Compares the outputs of an export with those of its model."""

import dataclasses
import typing

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.dense_signatures import predicts_of
from keras_vit.models.any_model import check_images_known
from keras_vit.models.features import returns_features


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """A comparison of a converted model with the original.

    Attributes:
        path: path of the written file or SavedModel.
        size_bytes: size of the file, or of the SavedModel's graph and weights, in bytes.
        weights_bytes: size of the model's weights in float32, in bytes.
        largest_difference: largest absolute difference between corresponding outputs of both
            models.
        logits_range: difference between the original's largest and smallest output; a scale for
            `largest_difference`.
        same_class: fraction of images, or of pixels for masks, for which both models predict the
            same class, in [0, 1]; None if the model does not predict one of several classes.
        cosine: cosine similarity between the outputs of both models, averaged over the images.
        images: description of the images, such as "8 images of noise".
    """

    path: str
    size_bytes: int
    weights_bytes: int
    largest_difference: float
    logits_range: float
    same_class: float | None
    cosine: float
    images: str

    def __str__(self):
        same = ""
        if self.same_class is not None:
            same = f"same class for {100 * self.same_class:.3g} %, "
        return (
            f"{self.path}: {self.size_bytes / 1e6:.2f} MB "
            f"({self.size_bytes / self.weights_bytes:.2f} of float32); outputs for {self.images} "
            f"differ by at most {self.largest_difference:.2g} (their range is "
            f"{self.logits_range:.2g}), {same}mean cosine {self.cosine:.5f}"
        )


class Reference(typing.NamedTuple):
    """Images, a model's outputs for them, `(N, ...)`, and a description of the images for
    reports."""

    images: np.ndarray
    outputs: np.ndarray
    description: str


def example_images(image_shape, count=8):
    """Returns deterministic smooth noise in [-1, 1], float32 `(count, H, W, C)`."""
    height, width, channels = image_shape
    noise = np.random.default_rng(0).uniform(-1, 1, (count, 5, 7, channels)).astype("float32")
    return keras.ops.convert_to_numpy(
        keras.ops.image.resize(noise, (height, width), data_format="channels_last")
    )


def count_of(images):
    """Returns a description of given images for reports."""
    return "the given image" if len(images) == 1 else f"the {len(images):,} given images"


def reference(model, images=None):
    """Returns the `Reference` of a model; None for smooth noise."""
    shape = check_images_known(model)
    description = "8 images of noise" if images is None else count_of(images)
    images = example_images(shape) if images is None else np.asarray(images, np.float32)
    if not len(images) or images.shape[1:] != shape:
        raise ValueError(
            f"`images` must be (N, {', '.join(map(str, shape))}). Received: shape={images.shape}"
        )
    outputs = in_batches(lambda batch: model(batch, training=False), images)
    return Reference(images, outputs, description)


def in_batches(function, images):
    """Calls a function on batches of up to 16 images; returns its outputs `(N, ...)` in float32."""
    size = 16
    parts = [function(images[start : start + size]) for start in range(0, len(images), size)]
    return np.concatenate(
        [keras.ops.convert_to_numpy(keras.ops.cast(part, "float32")) for part in parts]
    )


def saved_model_probabilities(path, images):
    """Returns the probabilities `(N, classes)` that the signature `tensor` of a SavedModel
    computes."""
    return in_batches(saved_model_runner(path, "tensor", "probabilities"), images)


def saved_model_runner(path, signature, output):
    """Returns a function from images to an output of a SavedModel's signature."""
    function = tf.saved_model.load(path).signatures[signature]
    return lambda images: function(images=tf.constant(images))[output]


def saved_model_size(path):
    """Returns the size of a SavedModel's graph and weights in bytes."""
    parts = tf.io.gfile.glob([f"{path}/saved_model.pb", f"{path}/variables/*"])
    return sum(tf.io.gfile.stat(part).length for part in parts)


def compare(path, size_bytes, model, reference, outputs):
    """Returns the `ExportReport` for a conversion's outputs `(N, ...)`, or raises a `ValueError` if
    their shape is wrong or they are not finite."""
    expected = reference.outputs
    finite = bool(np.isfinite(outputs).all())
    if outputs.shape != expected.shape or not finite:
        raise ValueError(
            f"The converted model must return finite logits of shape {expected.shape}. "
            f"Received: shape={outputs.shape}, finite={finite}"
        )
    same_class = None
    is_depth = predicts_of(model) == "depth"
    if not is_depth and not returns_features(model) and expected.shape[-1] > 1:
        same_class = float(np.mean(outputs.argmax(-1) == expected.argmax(-1)))
    # The cosine similarity of all outputs for an image.
    rows = outputs.reshape(len(outputs), -1)
    expected_rows = expected.reshape(len(expected), -1)
    norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(expected_rows, axis=1)
    cosine = np.mean(np.sum(rows * expected_rows, axis=1) / np.maximum(norms, 1e-30))
    return ExportReport(
        path=str(path),
        size_bytes=size_bytes,
        weights_bytes=4 * model.count_params(),
        largest_difference=float(np.abs(outputs - expected).max()),
        logits_range=float(np.ptp(expected)),
        same_class=same_class,
        cosine=float(cosine),
        images=reference.description,
    )
