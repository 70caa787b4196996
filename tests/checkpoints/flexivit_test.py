"""Tests of loading weights at a different patch size. Expected values come from timm and from
big_vision's formula."""

import json

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.names import canonical_variables
from keras_vit.checkpoints.patch_kernels import resize_patches

from ..shared import random_images

PATCH_SIZES = (4, 6, 8, 12, 16)
KERNEL = "embedding/kernel"
POSITIONS = "Transformer/posembed_input/pos_embedding"


@pytest.fixture
def timm_file(tmp_path):
    """Writes the weights and config as timm publishes them, and returns the folder."""
    (tmp_path / "model.safetensors").write_bytes(
        (GOLDEN / "families/timm_flexivit.safetensors").read_bytes()
    )
    arguments = {"num_heads": 3, "act_layer": "gelu", "no_embed_class": True}
    (tmp_path / "config.json").write_text(
        json.dumps({"architecture": "vit_base", "model_args": arguments})
    )
    return tmp_path


@pytest.mark.parametrize("patch_size", PATCH_SIZES)
def test_resized_patches_match_timm(timm_file, patch_size):
    model = keras_vit.from_pretrained(timm_file, patch_size=patch_size, input_shape=(48, 48, 3))
    expected = np.load(GOLDEN / "families/timm_flexivit.io.npz")
    weights = _weights(model)
    kernel = weights[KERNEL].reshape(patch_size, patch_size, 3, -1).transpose(3, 2, 0, 1)
    for ours, theirs in (
        (kernel, expected[f"kernel_{patch_size}"]),
        (weights[POSITIONS], expected[f"positions_{patch_size}"]),
        (
            keras.ops.convert_to_numpy(model(expected["images"])),
            expected[f"logits_patch_{patch_size}"],
        ),
    ):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


def _weights(model):
    return {
        name: keras.ops.convert_to_numpy(value)
        for name, value in canonical_variables(model).items()
    }


def _bigvision_kernel(kernel, new):
    """Resizes a patch kernel by the formula of the FlexiViT paper."""
    old = kernel.shape[0]
    images = np.eye(old * old).reshape(-1, old, old, 1)
    # (new², old²)
    matrix = tf.image.resize(images, (new, new), method="bilinear").numpy().reshape(old * old, -1).T
    flat = kernel.reshape(old * old, -1)
    return (np.linalg.pinv(matrix.T.astype(np.float64)) @ flat).reshape(new, new, *kernel.shape[2:])


@pytest.mark.one_backend
@pytest.mark.parametrize(("patch_size", "side"), [(2, 24), (4, 24), (7, 35), (12, 24), (16, 16)])
def test_resized_patches_match_the_formula_of_big_vision(golden, patch_size, side):
    file = golden("bigvision_gap.ckpt")
    source = GOLDEN / "bigvision_gap.ckpt.npz"
    model = keras_vit.from_pretrained(source, patch_size=patch_size, input_shape=(side, side, 3))
    weights = _weights(model)
    kernel = _bigvision_kernel(file["params/embedding/kernel"], patch_size)
    np.testing.assert_allclose(
        weights[KERNEL].reshape(kernel.shape), kernel, atol=2e-6 * np.abs(kernel).max()
    )
    grid = side // patch_size
    width = kernel.shape[-1]
    old = file["params/pos_embedding"].reshape(4, 4, width)
    positions = jax.image.resize(old, (grid, grid, width), "linear").reshape(1, -1, width)
    np.testing.assert_allclose(weights[POSITIONS], positions, atol=1e-6)


@pytest.mark.one_backend
def test_enlarged_kernels_preserve_inner_products():
    rng = np.random.default_rng(0)
    patch = rng.normal(size=(1, 8, 8, 3)).astype("float32")
    kernel = rng.normal(size=(8, 8, 3, 5)).astype("float32")
    large = tf.image.resize(patch, (20, 20), method="bilinear").numpy()
    new = resize_patches(kernel, 20, "bilinear_antialias")
    np.testing.assert_allclose(
        np.tensordot(large, new, 3), np.tensordot(patch, kernel, 3), atol=1e-4
    )


@pytest.mark.one_backend
def test_flexivit_constructor_resizes_patches(tmp_path):
    source = small_model(patch_size=16, class_token_position=False, include_top=False)
    checkpoints.save(source, tmp_path / "flexivit.npz")
    sizes = {
        "num_layers": 2,
        "hidden_size": 64,
        "mlp_dim": 128,
        "num_heads": 4,
        "include_top": False,
    }
    model = keras_vit.FlexiViT_S(
        patch_size=4, input_shape=(32, 32, 3), weights=tmp_path / "flexivit.npz", **sizes
    )
    expected = _bigvision_kernel(_weights(source)[KERNEL].reshape(16, 16, 3, 64), 4)
    np.testing.assert_allclose(_weights(model)[KERNEL].reshape(expected.shape), expected, atol=1e-6)


@pytest.mark.one_backend
def test_different_patch_size_requires_resize_patches():
    model = small_model(patch_size=4)
    source = GOLDEN / "vit_token.ckpt.npz"
    with pytest.raises(ValueError, match="architecture.*patch_size=8.*patch_size=4"):
        checkpoints.load(model, source)
    report = checkpoints.load(model, source, resize_patches=True)
    assert ("embedding/kernel", (4, 4, 3, 64), ((8, 8), (4, 4))) in report.resampled
    assert "resampled embedding/kernel from grid 8x8 to grid 4x4" in str(report)
    assert "embedding/kernel" not in {name for name, _ in report.loaded}


@pytest.mark.one_backend
def test_channels_and_patch_size_can_change_together():
    options = {"patch_size": 4, "input_shape": (32, 32, 1), "channels": "sum"}
    gray = keras_vit.from_pretrained(GOLDEN / "vit_token.ckpt.npz", **options)
    color = keras_vit.from_pretrained(GOLDEN / "vit_token.ckpt.npz", patch_size=4)
    images = random_images((2, 32, 32, 1))
    ours, theirs = (
        keras.ops.convert_to_numpy(m(x)) for m, x in ((gray, images), (color, images.repeat(3, -1)))
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.one_backend
def test_rejects_patches_larger_than_the_image():
    with pytest.raises(ValueError, match="patch_size.*64"):
        keras_vit.from_pretrained(GOLDEN / "vit_token.ckpt.npz", patch_size=64)
