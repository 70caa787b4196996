"""From a model's output to probabilities."""

import keras
import tensorflow as tf


def probabilities_of(model):
    """A function from images to probabilities, float32 `(B, classes)`.

    Logits go through a softmax; what the last layer made a softmax or a sigmoid stays.

    Raises:
        ValueError: the model gives no logits or probabilities of shape `(B, classes)`.
    """
    if len(model.output_shape) != 2:
        raise ValueError(
            "Only models that give logits or probabilities (B, classes) are served. "
            f"Received: output_shape={model.output_shape}"
        )
    last = model.layers[-1]
    activation = keras.activations.serialize(getattr(last, "activation", keras.activations.linear))
    if activation not in ("linear", "softmax", "sigmoid"):
        raise ValueError(
            "The activation of the model's last layer must be none, softmax or sigmoid. "
            f"Received: activation={activation!r}"
        )
    logits = activation == "linear" and not isinstance(last, keras.layers.Softmax)

    def probabilities(images):
        outputs = tf.cast(model(images, training=False), tf.float32)
        return tf.nn.softmax(outputs) if logits else outputs

    return probabilities
