"""Builds the models whose attention is inspected."""

import keras

import keras_vit

from ..shared import THREE_LAYERS, randomize


def build(constructor=keras_vit.VisionTransformer, **changes):
    """Returns a model with random weights for images of 24x16 pixels, which are 3x2 patches."""
    return randomize(constructor(**THREE_LAYERS | changes), 0.5, seed=1)


def vision_transformer(**changes):
    """Returns a Vision Transformer as the model and as the model that contains its attention."""
    vit = build(**changes)
    return vit, vit


def model_of_registers(**changes):
    """Returns a model whose outputs are register tokens, and its Vision Transformer."""
    vit = build(num_registers=2, **changes)
    registers = keras_vit.FeatureModel(vit, tokens="registers")
    return keras.Sequential([registers, keras.layers.Flatten()]), vit
