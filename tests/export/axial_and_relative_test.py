"""Tests of exported models with axial attention and relative or learned 2D positions."""

import numpy as np
import pytest

import keras_vit
from keras_vit import export

from ..shared import SIZES, random_images, randomize
from .conftest import SHAPE, probabilities_of, serve

MODEL = {**SIZES, "num_layers": 2, "input_shape": SHAPE, "classes": 5}
IMAGES = random_images((3, *SHAPE), seed=1)


FAMILIES = {
    "axial": (keras_vit.AxialVisionTransformer, {}),
    "relative": (keras_vit.VisionTransformer, {"position_embedding": "relative"}),
    "learned2d": (
        keras_vit.VisionTransformer,
        {"position_embedding": "learned2d", "position_embedding_at": "every_layer_shared"},
    ),
}


@pytest.fixture(params=FAMILIES)
def model(request):
    """Returns a random model of each family."""
    family, options = FAMILIES[request.param]
    return randomize(family(**MODEL, **options))


def test_saved_model_round_trips(model, tmp_path, skip_verification):
    path = export.saved_model(model, tmp_path, signatures=("tensor",))
    expected = probabilities_of(model, IMAGES)
    np.testing.assert_allclose(serve(path, IMAGES), expected, atol=1e-5)
    assert np.ptp(expected, axis=0).max() > 1e-3  # the outputs differ between images
    np.testing.assert_array_equal(export.load(path)(IMAGES), model(IMAGES))


@pytest.mark.slow
def test_other_formats_match_logits(model, write_file):
    report = write_file(model)
    assert report.largest_difference < 1e-4 * report.logits_range
