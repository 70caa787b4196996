"""Builds the models whose attention is inspected."""

import keras_vit

from ..shared import THREE_LAYERS, randomize


def build(constructor=keras_vit.VisionTransformer, **changes):
    """Returns a model with random weights for images of 24x16 pixels, which are 3x2 patches."""
    return randomize(constructor(**THREE_LAYERS | changes), 0.5, seed=1)
