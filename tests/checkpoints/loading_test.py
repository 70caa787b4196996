"""Tests of loading weights into models with another grid, precision or architecture."""

import keras
import numpy as np
import pytest

from keras_vit import checkpoints
from keras_vit.checkpoints.names import EMBEDDING, POSITIONS
from keras_vit.checkpoints.position_embeddings import resample

from ..shared import read_arrays
from .helpers import VIT_TOKEN, assert_matches_logits, small_model, weights_of


@pytest.mark.parametrize(
    "height, width",
    # The grid of 16x64 has as many patches as the grid of the file, 4x4.
    [(16, 16), (24, 40), (16, 64)],
)
def test_grid_changes_positions_but_not_patch_kernel(height, width):
    model = small_model(input_shape=(height, width, 3), weights=VIT_TOKEN)
    weights = weights_of(model)
    arrays = read_arrays(VIT_TOKEN)
    expected = resample(arrays[POSITIONS], (4, 4), (height // 8, width // 8))
    np.testing.assert_array_equal(weights[POSITIONS], expected)
    np.testing.assert_array_equal(weights[EMBEDDING], arrays[EMBEDDING].reshape(192, 64))


def test_loads_into_mixed_precision_model():
    keras.config.set_dtype_policy("mixed_bfloat16")
    assert_matches_logits(small_model(weights=VIT_TOKEN), "vit_token", atol=0.05)


@pytest.mark.one_backend
@pytest.mark.parametrize(("option", "value"), [("head", "drop"), ("channels", "mean")])
def test_rejects_unknown_options(option, value):
    with pytest.raises(ValueError, match=f"Received: {option}='{value}'"):
        checkpoints.load(small_model(), VIT_TOKEN, **{option: value})


@pytest.mark.one_backend
def test_rejects_other_keras_models():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="must be an image model of keras_vit"):
        checkpoints.load(model, VIT_TOKEN)
