"""Tests of loading weights at a different patch size. Expected values come from timm and from
big_vision's formula."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.names import EMBEDDING, POSITIONS
from keras_vit.checkpoints.position_embeddings import resample

from ..shared import (
    FAMILY_FILES,
    GOLDEN,
    GOLDEN_SIZES,
    assert_close,
    random_images,
    read_arrays,
    to_numpy,
)
from .helpers import VIT_TOKEN, small_model, weights_of


@pytest.fixture
def timm_folder(tmp_path):
    """Returns a folder with weights and a config, as timm publishes them."""
    shutil.copy(FAMILY_FILES / "timm_flexivit.safetensors", tmp_path / "model.safetensors")
    arguments = {"num_heads": 3, "act_layer": "gelu", "no_embed_class": True}
    config = {"architecture": "vit_base", "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def resize_as_big_vision(kernel, patch_size):
    """Resizes a patch kernel by the formula of the FlexiViT paper."""
    side = kernel.shape[0]
    basis = np.eye(side * side).reshape(-1, side, side, 1)
    resized = tf.image.resize(basis, (patch_size, patch_size), method="bilinear").numpy()
    matrix = resized.reshape(side * side, -1).T  # (new pixels, old pixels)
    pixels = kernel.reshape(side * side, -1)
    result = np.linalg.pinv(matrix.T.astype(np.float64)) @ pixels
    return result.reshape(patch_size, patch_size, *kernel.shape[2:])


@pytest.mark.parametrize("patch_size", [4, 6, 16])
def test_resized_patches_match_timm(patch_size, timm_folder):
    model = keras_vit.from_pretrained(timm_folder, patch_size=patch_size, input_shape=(48, 48, 3))
    expected = read_arrays(FAMILY_FILES / "timm_flexivit.io.npz")
    assert_close(model(expected["images"]), expected[f"logits_patch_{patch_size}"])


@pytest.mark.one_backend
@pytest.mark.parametrize("patch_size, side", [(2, 24), (7, 35), (12, 24)])
def test_resized_patches_match_the_formula_of_big_vision(patch_size, side):
    source = GOLDEN / "bigvision_gap.ckpt.npz"
    arrays = read_arrays(source)
    model = keras_vit.from_pretrained(source, patch_size=patch_size, input_shape=(side, side, 3))
    weights = weights_of(model)
    kernel = resize_as_big_vision(arrays["params/embedding/kernel"], patch_size)
    assert_close(weights[EMBEDDING].reshape(kernel.shape), kernel, tolerance=2e-6)
    positions = resample(arrays["params/pos_embedding"], (4, 4), model.grid, "bilinear_antialias")
    np.testing.assert_array_equal(weights[POSITIONS], positions)


@pytest.mark.one_backend
def test_different_patch_size_requires_resize_patches():
    model = small_model(patch_size=4)
    with pytest.raises(ValueError, match="patch_size=8.*patch_size=4"):
        checkpoints.load(model, VIT_TOKEN)
    report = checkpoints.load(model, VIT_TOKEN, resize_patches=True)
    assert (EMBEDDING, (4, 4, 3, 64), ((8, 8), (4, 4))) in report.resampled
    assert "resampled embedding/kernel from grid 8x8 to grid 4x4" in str(report)


@pytest.mark.one_backend
def test_flexivit_always_resizes_patches():
    arguments = {**GOLDEN_SIZES, "patch_size": 4, "input_shape": (32, 32, 3)}
    model = keras_vit.FlexiViT_S(**arguments, class_token_position=True, weights=VIT_TOKEN)
    expected = weights_of(keras_vit.from_pretrained(VIT_TOKEN, patch_size=4))
    np.testing.assert_array_equal(weights_of(model)[EMBEDDING], expected[EMBEDDING])


@pytest.mark.one_backend
def test_channels_and_patch_size_can_change_together():
    arguments = {"patch_size": 4, "input_shape": (32, 32, 1), "channels": "sum"}
    gray = keras_vit.from_pretrained(VIT_TOKEN, **arguments)
    color = keras_vit.from_pretrained(VIT_TOKEN, patch_size=4)
    images = random_images((2, 32, 32, 1))
    expected = to_numpy(color(images.repeat(3, -1)))
    np.testing.assert_allclose(gray(images), expected, atol=1e-5)
