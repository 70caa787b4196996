"""Tests of `inference_copy` in float32 and bfloat16."""

import keras
import numpy as np
import pytest

from keras_vit.export.graph import inference_copy, uses_reduced_precision

from ..shared import random_images
from .conftest import SHAPE, tiny_model

IMAGES = random_images((2, *SHAPE))


def nested_model():
    return keras.Sequential([keras.Input(SHAPE), tiny_model(classifier_activation="softmax")])


@pytest.mark.parametrize("make", [tiny_model, nested_model])
def test_bfloat16_copy_has_float32_head(make):
    copy = inference_copy(make(), "bfloat16")
    model = copy if make is tiny_model else copy.layers[-1]
    dtypes = {layer.name: layer.compute_dtype for layer in model.layers}
    assert dtypes.pop("head") == dtypes.pop("images", "float32") == "float32"
    assert set(dtypes.values()) == {"bfloat16"}
    assert {weight.dtype for weight in copy.weights if "head" not in weight.path} == {"bfloat16"}
    assert uses_reduced_precision(copy)
    assert not uses_reduced_precision(inference_copy(copy))


@pytest.mark.parametrize("make", [tiny_model, nested_model])
def test_float32_copy_has_its_own_weights(make):
    model = make()
    copy = inference_copy(model)
    np.testing.assert_array_equal(copy(IMAGES), model(IMAGES))
    copy.weights[0].assign(copy.weights[0] + 1)
    assert np.abs(copy.weights[0] - model.weights[0]).min() > 0.5


def test_rejects_model_without_complete_config():
    class Subclassed(keras.Model):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def call(self, images):
            return self.layer(images)

    model = Subclassed(tiny_model())
    model(IMAGES)
    with pytest.raises(ValueError, match="cannot be rebuilt: "):
        inference_copy(model)
