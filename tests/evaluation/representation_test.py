"""Tests of `representation_model`, which outputs the features that evaluators use."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation.frozen import representation_model

from ..shared import SIZES, random_images
from .colors import mean_color_model, small_vit


def test_representation_excludes_a_custom_head():
    """If the pooling is unknown, the representation is the input of the last dense layer."""
    vit = small_vit(classes=5, classifier="unpooled")
    pooled = keras.layers.GlobalAveragePooling1D()(vit.output)
    model = keras.Model(vit.input, keras.layers.Dense(3)(pooled))
    images = random_images((2, 8, 8, 3))
    expected = keras.Model(vit.input, pooled)(images)
    np.testing.assert_array_equal(representation_model(model)(images), expected)


@pytest.mark.parametrize(
    ("constructor", "arguments"),
    [
        (keras_vit.VisionTransformer, {**SIZES, "representation_size": 5}),
        (keras_vit.BiTResNet, {"depth": 8, "width": 32}),
        (keras_vit.AxialVisionTransformer, SIZES),
    ],
)
def test_representation_of_a_backbone_is_its_output(constructor, arguments):
    backbone = constructor(**arguments, include_top=False, input_shape=(32, 32, 3))
    images = random_images((2, 32, 32, 3))
    expected = backbone(images)
    wrapped = keras.Sequential([keras.Input((32, 32, 3)), backbone])
    headed = keras.Sequential([keras.Input((32, 32, 3)), backbone, keras.layers.Dense(3)])
    for model in (backbone, wrapped, headed):
        np.testing.assert_allclose(representation_model(model)(images), expected, atol=1e-5)


def test_representation_is_what_the_head_reads():
    vit = small_vit(num_layers=2)
    first_layer = keras_vit.FeatureModel(vit, 1, tokens="class")
    model = keras.Sequential([keras.Input((8, 8, 3)), first_layer, keras.layers.Dense(3)])
    pooled = keras_vit.FeatureModel(vit, tokens="pooled")
    images = random_images((2, 8, 8, 3))
    np.testing.assert_allclose(representation_model(model)(images), first_layer(images), atol=1e-6)
    np.testing.assert_allclose(representation_model(vit)(images), pooled(images), atol=1e-6)


def test_representation_requires_a_vit_or_a_dense_head():
    assert representation_model(mean_color_model()).output_shape == (None, 3)
    with pytest.raises(ValueError, match="no Vision Transformer"):
        representation_model(keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()]))
