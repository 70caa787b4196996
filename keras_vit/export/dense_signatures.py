"""Signatures of models that predict a class or a depth for each pixel."""

import keras
import tensorflow as tf

from keras_vit.models.resizing import resize_bilinear

MOST_CLASSES = 255  # in a mask, 255 marks ignored pixels


def _outputs_of(served):
    """Returns a function from images to outputs at their size, float32 `(B, H, W, outputs)`."""
    size = served.model.input_shape[1:3]

    def function(images):
        outputs = tf.cast(served.model(images, training=False), tf.float32)
        outputs = outputs if outputs.shape.rank == 4 else outputs[..., None]
        return resize_bilinear(outputs, size)

    return served.shared(function)


def masks(served):
    """Returns a function from batches to the class of each pixel, uint8 `(B, H, W)`, and its
    probability, float32 `(B, H, W)`."""
    compute = _outputs_of(served)

    def function(images):
        probabilities = tf.nn.softmax(compute(images))
        classes = tf.argmax(probabilities, -1, tf.int32)
        return {
            "masks": tf.cast(classes, tf.uint8),
            "confidence": tf.reduce_max(probabilities, -1),
        }

    return function


def depths(served):
    """Returns a function from batches to depths, float32 `(B, H, W)`."""
    compute = _outputs_of(served)

    def function(images):
        return {"depths": compute(images)[..., 0]}

    return function


KINDS = {"segmentation": masks, "depth": depths}
"""Maps what a model predicts to a function that makes its outputs; see `predicts_of`."""


def predicts_of(model: keras.Model) -> str:
    """Returns what a model predicts for each pixel, a key of `KINDS`, or "" for other models."""
    return getattr(model, "predicts", "")


def check_signatures(model, signatures):
    """Raises a `ValueError` if a dense model cannot be served with these signatures."""
    wrong = sorted(set(signatures) - {"serving_default", "tensor"})
    if wrong:
        raise ValueError(
            "A model that predicts pixels has the signatures serving_default and tensor. "
            f"Received: signatures={','.join(wrong)}"
        )
    if predicts_of(model) == "segmentation" and model.output_shape[-1] > MOST_CLASSES:
        raise ValueError(
            f"Masks have at most {MOST_CLASSES} classes. Received: "
            f"output_shape={model.output_shape}"
        )
