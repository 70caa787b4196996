"""Per-example losses in `keras.ops`."""

from collections.abc import Callable

import keras
from keras import ops


def softmax(labels: keras.KerasTensor, logits: keras.KerasTensor) -> keras.KerasTensor:
    """Computes the softmax cross-entropy of each example, in nats.

    Args:
        labels: float `(B, classes)`. Each row is one-hot or a mixture of classes, and sums to 1; a
            row of zeros has loss 0.
        logits: float `(B, classes)`.

    Returns:
        A float32 tensor `(B,)`.

    Reference: fine-tuning in `vit_jax` (https://github.com/google-research/vision_transformer).
    """
    labels = ops.cast(labels, "float32")
    logits = ops.cast(logits, "float32")
    return -ops.sum(labels * ops.log_softmax(logits, axis=-1), axis=-1)


def sigmoid(labels: keras.KerasTensor, logits: keras.KerasTensor) -> keras.KerasTensor:
    """Computes the sigmoid cross-entropy of each example, summed over the classes, in nats.

    With many classes, initialize the head's bias to a negative value, so that the negative classes
    do not dominate the initial loss: -10 for ImageNet-21k and JFT, -6.9 (-log 1000) for ImageNet.

    Args:
        labels: float `(B, classes)` in [0, 1], with any number of positive classes per example.
        logits: float `(B, classes)`.

    Returns:
        A float32 tensor `(B,)`.

    Reference: big_vision's pre-training (`sigmoid_xent`).
    """
    labels = ops.cast(labels, "float32")
    logits = ops.cast(logits, "float32")
    return ops.sum(ops.softplus(logits) - labels * logits, axis=-1)


LOSSES = {"softmax": softmax, "sigmoid": sigmoid}


def get(name: str) -> Callable[[keras.KerasTensor, keras.KerasTensor], keras.KerasTensor]:
    """Returns the loss function for `name`, a key of `LOSSES`.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in LOSSES:
        raise ValueError(f"`loss` must be one of {', '.join(LOSSES)}. Received: loss={name!r}")
    return LOSSES[name]
