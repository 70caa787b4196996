"""From a model's output to probabilities."""

import keras
import tensorflow as tf

ACTIVATIONS = {"softmax": tf.nn.softmax, "sigmoid": tf.nn.sigmoid}


def probabilities_of(model, activation="softmax"):
    """A function from images to probabilities, float32 `(B, classes)`.

    Args:
        model: a model to logits, or to probabilities that its last layer made, which stay.
        activation: what makes probabilities of logits, "softmax" or "sigmoid".

    Raises:
        ValueError: the activation is neither, or the model gives no logits or probabilities of shape `(B, classes)`.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {', '.join(ACTIVATIONS)}. Received: activation={activation!r}")
    if len(model.output_shape) != 2:
        raise ValueError(
            "Only models that give logits or probabilities (B, classes) are served. "
            f"Received: output_shape={model.output_shape}"
        )
    last = model.layers[-1]
    while isinstance(last, keras.Model):
        last = last.layers[-1]
    given = keras.activations.serialize(getattr(last, "activation", keras.activations.linear))
    if given not in ("linear", "softmax", "sigmoid"):
        raise ValueError(
            f"The activation of the model's last layer must be none, softmax or sigmoid. Received: activation={given!r}"
        )
    logits = given == "linear" and not isinstance(last, keras.layers.Softmax)

    def probabilities(images):
        outputs = tf.cast(model(images, training=False), tf.float32)
        return ACTIVATIONS[activation](outputs) if logits else outputs

    return probabilities
