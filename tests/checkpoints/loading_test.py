"""Tests of loading weights into models with another grid, precision or architecture."""

import keras
import numpy as np
import pytest

import keras_vit
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


@pytest.mark.one_backend
def test_rejects_other_pool_padding(tmp_path):
    sizes = {"depth": 8, "width": 32, "input_shape": (16, 16, 3), "classes": 3}
    model = keras_vit.BiTResNet(**sizes, pool_padding="minus_infinity")
    checkpoints.save(model, tmp_path / "model.npz")
    with pytest.raises(ValueError, match="must be built with pool_padding=minus_infinity"):
        checkpoints.load(keras_vit.BiTResNet(**sizes), tmp_path / "model.npz", head="new")


@pytest.mark.one_backend
def test_npz_loading_ignores_the_config_of_a_run(tmp_path):
    mask_embedding = "mask_patches/mask_embedding"
    arrays = {**read_arrays(VIT_TOKEN), mask_embedding: np.zeros((1, 1, 64), "float32")}
    np.savez(tmp_path / "weights.npz", **arrays)
    (tmp_path / "config.json").write_text('{"architecture": "VisionTransformer"}')
    report = checkpoints.load(small_model(), tmp_path / "weights.npz", head="new")
    assert report.unused == [(mask_embedding, (1, 1, 64))]
