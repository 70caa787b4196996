"""The representation that a model gives every image of a dataset, before its head."""

import keras
import numpy as np
from keras import ops

from keras_vit.evaluation.collecting import collect
from keras_vit.models.encoder import Encoder
from keras_vit.models.features import FeatureModel


def representations(model, source, options, batch_size=64, indices=None):
    """What the head of a model reads, for the examples of a source.

    Args:
        model, source, options, batch_size, indices: as of `collect`.

    Returns:
        `(features, labels)` of the examples that can be read and have a label: float32 `(N, F)` and int64 `(N,)`.

    Raises:
        ValueError: the model has no head that could be left out, or no example can be read.
    """
    extractor = representation_model(model)
    arrays = collect(extractor, _features, source, options, batch_size, indices)
    counted = arrays["weights"] > 0
    return arrays["features"][counted], arrays["labels"][counted].argmax(-1)


def train_and_test(model, inputs, indices=None):
    """The representations of both splits of an `InputPipeline`, `(x, y, x_test, y_test)`; `indices` are of training."""
    train = representations(model, inputs.train, inputs.options, inputs.batch_size, indices)
    return *train, *representations(model, inputs.test, inputs.options, inputs.batch_size)


def representation_model(model):
    """A Keras model from images to the representation `(B, F)`: what the head reads, after `pre_logits`."""
    try:
        Encoder(model)
    except ValueError:
        last = model.layers[-1]
        if isinstance(last, keras.layers.Dense) and len(last.input.shape) == 2:
            return keras.Model(model.input, last.input)
        raise
    return FeatureModel(model, tokens="pooled")


def known_labels(source):
    """The labels of a source, integers `(N,)`, if they are known without reading it; else None."""
    return None if source.labels is None else np.asarray(source.labels)


def _features(model, batch):
    return {"features": ops.cast(model(batch[0], training=False), "float32")}
