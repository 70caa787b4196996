"""Signatures of models that predict a class or a depth for each pixel."""

import keras
import tensorflow as tf

from keras_vit.models.resizing import resize_bilinear

MOST_CLASSES = 255  # in a mask, 255 marks ignored pixels


def outputs_of(served):
    """Returns a function from images to what a dense model predicts for their pixels,
    `{name: tensor}`."""
    size = served.model.input_shape[1:3]
    interpret = KINDS[predicts_of(served.model)]

    def function(images):
        outputs = tf.cast(served.model(images, training=False), tf.float32)
        outputs = outputs if outputs.shape.rank == 4 else outputs[..., None]
        return interpret(resize_bilinear(outputs, size))

    return served.shared(function)


def _masks(logits):
    """Returns the class of each pixel, uint8 `(B, H, W)`, and its probability, float32
    `(B, H, W)`."""
    probabilities = tf.nn.softmax(logits)
    return {
        "masks": tf.cast(tf.argmax(probabilities, -1, tf.int32), tf.uint8),
        "confidence": tf.reduce_max(probabilities, -1),
    }


def _depths(outputs):
    """Returns the depth of each pixel, float32 `(B, H, W)`."""
    return {"depths": outputs[..., 0]}


KINDS = {"segmentation": _masks, "depth": _depths}
"""Maps what a model predicts to a function of its outputs at image size, float32
`(B, H, W, outputs)`; see `predicts_of`."""


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
