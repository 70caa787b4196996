"""The representation that a model gives every image of a dataset, before its head."""

import keras
import numpy as np
from keras import ops

from keras_vit.evaluation.collecting import collect
from keras_vit.layers.patch_masking import PatchMasking
from keras_vit.models.features import FeatureModel


def representations(model, inputs, split="test", indices=None):
    """What the head of a model reads, for the examples of a split.

    Args:
        model, inputs, split, indices: as of `collect`.

    Returns:
        `(features, labels, readable)`: float32 `(N, F)` and int64 `(N,)` of the examples that can be read and have a
        label, and which of all examples these are, bool.

    Raises:
        ValueError: the model has no head that could be left out, no example can be read, too many cannot, or one has
            several right labels.
    """
    arrays = collect(representation_model(model), _features, inputs, split, indices)
    readable = arrays["weights"] > 0
    if (np.count_nonzero(arrays["labels"][readable], axis=1) > 1).any():
        raise ValueError(
            "Classifiers of representations are defined for one right class; `top1` and `average_precision` take "
            f"several. Received: examples of the split {split!r} with several right labels"
        )
    return arrays["features"][readable], arrays["labels"][readable].argmax(-1), readable


def train_and_test(model, inputs):
    """The representations of both splits of an `InputPipeline`, `(x, y, x_test, y_test)`."""
    return *representations(model, inputs, "train")[:2], *representations(model, inputs)[:2]


def representation_model(model):
    """A Keras model from images to the representation `(B, F)`: what the head reads, after `pre_logits`; for a model of
    masked patches, whose head reads every patch, the mean of its patches' tokens after the norm."""
    if any(isinstance(layer, PatchMasking) for layer in model.layers):
        images = keras.Input(model.input_shape[1:])
        return keras.Model(images, ops.mean(FeatureModel(model, tokens="patch")(images), axis=1))
    try:
        return FeatureModel(model, tokens="pooled")
    except ValueError:  # no Vision Transformer of this library, or a head that reads something else of it
        last = model.layers[-1] if model.layers else None
        if isinstance(last, keras.layers.Dense) and len(last.input.shape) == 2:
            return keras.Model(model.inputs[0], last.input)
        raise


def check_representation(model, inputs):
    """Raises a `ValueError` if a model has no representation in front of its head."""
    representation_model(model)


def _features(model, batch):
    return {"features": ops.cast(model(batch[0], training=False), "float32")}
