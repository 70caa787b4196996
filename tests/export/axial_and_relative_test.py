"""Tests of exported models with axial attention and relative or learned 2D positions."""

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import export

from ..shared import SIZES, random_images, randomize
from .conftest import SHAPE, formats, probabilities_of

MODEL = {**SIZES, "num_layers": 2, "input_shape": SHAPE, "classes": 5}
IMAGES = random_images((3, *SHAPE), seed=1)


def axial():
    return keras_vit.AxialVisionTransformer(**MODEL)


def relative():
    return keras_vit.VisionTransformer(**MODEL, position_embedding="relative")


def learned2d():
    return keras_vit.VisionTransformer(
        **MODEL, position_embedding="learned2d", position_embedding_at="every_layer_shared"
    )


@pytest.mark.parametrize("make", [axial, relative, learned2d])
def test_saved_model_round_trips(make, tmp_path, skip_verification):
    model = randomize(make())
    path = export.saved_model(model, tmp_path, signatures=("tensor",))
    outputs = tf.saved_model.load(path).signatures["tensor"](images=tf.constant(IMAGES))
    expected = probabilities_of(model, IMAGES)
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
    assert np.ptp(expected, axis=0).max() > 1e-3  # the outputs differ between images
    np.testing.assert_array_equal(export.load(path)(IMAGES), model(IMAGES))


@pytest.mark.slow
@formats
@pytest.mark.parametrize("make", [axial, relative, learned2d])
def test_other_formats_match_logits(make, format_name, ending, tmp_path):
    model = randomize(make())
    report = getattr(export, format_name)(model, tmp_path / f"model.{ending}")
    assert report.largest_difference < 1e-4 * report.logits_range
