"""Converts a model's outputs to class names and probabilities."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.checkpoints.downloading import fetch

# Files with one class name per line, in the order of the published models' outputs.
_NAMES = {
    1000: "https://storage.googleapis.com/bit_models/ilsvrc2012_wordnet_lemmas.txt",
    21843: "https://storage.googleapis.com/bit_models/imagenet21k_wordnet_lemmas.txt",
}


def decode_predictions(
    predictions: np.ndarray | keras.KerasTensor,
    top: int = 5,
    names: Sequence[str] | None = None,
    activation: str = "auto",
) -> list[list[tuple[int, str, float]]]:
    """Returns the most probable classes of each image with their names.

    Args:
        predictions: `(B, classes)`, probabilities or logits.
        top: number of classes to return, most probable first.
        names: one name per class; None for the published names of ImageNet (1,000 classes) or
            ImageNet-21k (21,843), which are downloaded once.
        activation: function that converts logits to probabilities: "softmax", "sigmoid" (for models
            trained with the sigmoid loss), "none" (for probabilities), or "auto" ("none" if all
            predictions are in [0, 1], else "softmax").

    Returns:
        For each image, a list of `(class, name, probability)`.

    Raises:
        ValueError: `top` is below 1, the predictions do not have rank 2, the numbers of names and
            classes differ, no names are published for this number of classes, or the activation is
            unknown.
        ConnectionError: the published names cannot be downloaded.
    """
    if top < 1:
        raise ValueError(f"`top` must be 1 or more. Received: top={top}")
    predictions = ops.convert_to_tensor(predictions)
    if len(predictions.shape) != 2:
        raise ValueError(
            "`predictions` must have shape (B, classes). Received: "
            f"shape={tuple(predictions.shape)}"
        )
    classes = predictions.shape[1]
    names = class_names(classes) if names is None else names
    if len(names) != classes:
        raise ValueError(
            f"`names` must have one name per class. Received: classes={classes}, names={len(names)}"
        )
    if activation not in ("auto", "softmax", "sigmoid", "none"):
        raise ValueError(
            "`activation` must be auto, softmax, sigmoid or none. Received: "
            f"activation={activation!r}"
        )
    probabilities = _probabilities(ops.cast(predictions, "float32"), activation)
    scores, indices = (ops.convert_to_numpy(x) for x in ops.top_k(probabilities, min(top, classes)))
    return [
        [(int(index), names[index], float(score)) for index, score in zip(row_indices, row_scores)]
        for row_indices, row_scores in zip(indices, scores)
    ]


def _probabilities(predictions, activation):
    if activation == "auto":
        is_probability = bool(ops.all((predictions >= 0) & (predictions <= 1)))
        activation = "none" if is_probability else "softmax"
    return predictions if activation == "none" else getattr(ops, activation)(predictions)


def class_names(classes: int) -> list[str]:
    """Returns the published names of ImageNet's 1,000 or ImageNet-21k's 21,843 classes, which are
    downloaded once."""
    if classes not in _NAMES:
        raise ValueError(
            f"Names are only published for {' and '.join(map(str, _NAMES))} classes; pass your own "
            f"names instead. Received: classes={classes}"
        )
    with open(fetch(_NAMES[classes]), encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]
