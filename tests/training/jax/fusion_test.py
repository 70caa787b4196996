"""Tests of the program that XLA compiles from a model."""

import re

import jax
import keras

from keras_vit import VisionTransformer
from keras_vit.layers.compilation import compiling_for

from ...shared import SIZES


def _largest_fusion(num_layers):
    """Returns the number of instructions of the largest fused function of a model's gradients."""
    sizes = {**SIZES, "num_layers": num_layers}
    model = VisionTransformer(input_shape=(8, 8, 3), classes=3, **sizes)
    variables = model.trainable_variables

    def loss(weights, images):
        with keras.StatelessScope(state_mapping=list(zip(variables, weights))):
            return model(images, training=True).sum()

    weights = [variable.value for variable in variables]
    with compiling_for("cpu"):
        lowered = jax.jit(jax.grad(loss)).lower(weights, jax.numpy.ones((2, 8, 8, 3)))
    functions = re.findall(r"^%fused\S+ .*?^}", lowered.compile().as_text(), re.M | re.S)
    return max(function.count(" = ") for function in functions)


def test_gradients_of_later_blocks_are_not_recomputed():
    assert _largest_fusion(num_layers=8) == _largest_fusion(num_layers=4)
