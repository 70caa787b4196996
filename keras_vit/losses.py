"""Per-example losses in `keras.ops`."""

from collections.abc import Callable

import keras
from keras import ops


def softmax(labels: keras.KerasTensor, logits: keras.KerasTensor) -> keras.KerasTensor:
    """Computes the softmax cross-entropy, float32 `(B,)` in nats; a row of zeros has loss 0.

    Args:
        labels: float `(B, classes)`, rows that sum to 1: one class, or shares of several.
        logits: float `(B, classes)`.

    Reference: fine-tuning in `vit_jax` (https://github.com/google-research/vision_transformer).
    """
    labels, logits = ops.cast(labels, "float32"), ops.cast(logits, "float32")
    return -ops.sum(labels * ops.log_softmax(logits, axis=-1), axis=-1)


def sigmoid(labels: keras.KerasTensor, logits: keras.KerasTensor) -> keras.KerasTensor:
    """Computes the sigmoid cross-entropy of each class, summed over the classes: float32 `(B,)` in nats.

    With many classes, initialize the head's bias to a low value, or the negatives dominate the first loss: -10 for
    ImageNet-21k and JFT, -6.9 (minus the logarithm of 1,000) for ImageNet.

    Args:
        labels: float `(B, classes)`, each in [0, 1]; any number of positive classes.
        logits: float `(B, classes)`.

    Reference: big_vision's pre-training (`sigmoid_xent`).
    """
    labels, logits = ops.cast(labels, "float32"), ops.cast(logits, "float32")
    return ops.sum(ops.softplus(logits) - labels * logits, axis=-1)


LOSSES = {"softmax": softmax, "sigmoid": sigmoid}


def get(name: str) -> Callable[[keras.KerasTensor, keras.KerasTensor], keras.KerasTensor]:
    """Returns the loss called `name`, a key of `LOSSES`.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in LOSSES:
        raise ValueError(f"`loss` must be one of {', '.join(LOSSES)}. Received: loss={name!r}")
    return LOSSES[name]
