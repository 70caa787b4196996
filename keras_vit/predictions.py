"""Names and probabilities from the outputs of a model."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.checkpoints.downloading import fetch

# Class names, one a line, in the order of the heads of the published weights.
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
    """Returns the most probable classes of each image, with their names.

    Args:
        predictions: `(B, classes)`, probabilities or logits.
        top: number of classes, best first.
        names: a list of names, as many as there are classes; or None, with 1,000 or 21,843 classes, for the published
            names of ImageNet and ImageNet-21k, which are downloaded once.
        activation: what turns logits into probabilities: "softmax", "sigmoid" (each class by itself, for models
            trained with that loss), "none", or "auto": "none" if all predictions are in [0, 1], else "softmax".

    Returns:
        For each image a list of `(class, name, probability)`.

    Raises:
        ValueError: the predictions are not of rank 2, there are not as many classes as there are names, or the
            activation is not known.
        ConnectionError: the published names could not be downloaded.
    """
    predictions = ops.convert_to_tensor(predictions)
    if len(predictions.shape) != 2:
        raise ValueError(f"Predictions must be (B, classes). Received: shape={tuple(predictions.shape)}")
    classes = predictions.shape[1]
    if names is None:
        if classes not in _NAMES:
            raise ValueError(
                f"Names are published for {' and '.join(map(str, _NAMES))} classes; give a list as `names`. "
                f"Received: classes={classes}"
            )
        names = class_names(classes)
    if len(names) != classes:
        raise ValueError(f"There must be a name for each class. Received: classes={classes}, names={len(names)}")
    if activation not in ("auto", "softmax", "sigmoid", "none"):
        raise ValueError(f"`activation` must be auto, softmax, sigmoid or none. Received: activation={activation!r}")
    predictions = ops.cast(predictions, "float32")
    if activation == "auto":
        is_probability = bool(ops.all((predictions >= 0) & (predictions <= 1)))
        activation = "none" if is_probability else "softmax"
    if activation != "none":
        predictions = getattr(ops, activation)(predictions)
    scores, indices = (ops.convert_to_numpy(x) for x in ops.top_k(predictions, min(top, classes)))
    return [
        [(int(index), names[index], float(score)) for index, score in zip(row_indices, row_scores)]
        for row_indices, row_scores in zip(indices, scores)
    ]


def class_names(classes: int) -> list[str]:
    """The published names of 1,000 (ImageNet) or 21,843 (ImageNet-21k) classes, from the cache of weights."""
    with open(fetch(_NAMES[classes]), encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]
