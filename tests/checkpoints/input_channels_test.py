"""Tests of loading weights into models with a different number of input channels."""

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.names import BIT_ROOT, EMBEDDING, STEM_ROOT
from keras_vit.checkpoints.patch_kernels import adapt_input_channels

from ..shared import (
    assert_same_arrays,
    assert_same_weights,
    random_images,
    randomize,
    read_arrays,
    to_numpy,
)
from .helpers import VIT_TOKEN, assert_rejected, small_model, weights_of

pytestmark = pytest.mark.one_backend  # checkpoints are converted in numpy


def adapt_input_conv(channels, kernel):
    """Reimplements timm's `adapt_input_conv` for RGB kernels `(out, in, height, width)`."""
    if channels == 1:
        return kernel.sum(1, keepdims=True)
    repeats = -(-channels // 3)
    return np.tile(kernel, (1, repeats, 1, 1))[:, :channels] * (3 / channels)


@pytest.mark.parametrize("channels, rule", [(1, "sum"), (2, "tile"), (13, "tile")])
def test_channel_rules_match_timm(channels, rule):
    kernel = random_images((5, 7, 3, 11))
    expected = adapt_input_conv(channels, kernel.transpose(3, 2, 0, 1)).transpose(2, 3, 1, 0)
    result = adapt_input_channels(kernel, channels, rule)
    np.testing.assert_allclose(result, expected, atol=1e-6, strict=True)


@pytest.mark.parametrize("rule", ["sum", "tile"])
def test_gray_kernel_is_repeated_for_rgb(rule):
    gray = random_images((5, 7, 1, 11))
    rgb = adapt_input_channels(gray, 3, rule)
    np.testing.assert_allclose(rgb, gray.repeat(3, axis=2) / 3, atol=1e-6)


def test_sum_preserves_logits_of_gray_images():
    rgb = small_model(weights=VIT_TOKEN)
    model = small_model(input_shape=(32, 32, 5))
    checkpoints.load(model, VIT_TOKEN, channels="sum")
    gray = random_images((3, 32, 32, 1))
    logits = to_numpy(model(gray.repeat(5, axis=-1)))
    np.testing.assert_allclose(logits, rgb(gray.repeat(3, axis=-1)), atol=1e-5)


def test_gray_model_is_restored(tmp_path):
    gray = randomize(small_model(input_shape=(32, 32, 1)))
    checkpoints.save(gray, tmp_path / "gray.npz")
    restored = keras_vit.from_pretrained(tmp_path / "gray.npz")
    assert restored.input_shape == (None, 32, 32, 1)
    assert_same_weights(restored, gray)


def test_only_the_first_kernel_is_adapted():
    model = small_model(input_shape=(32, 32, 4))
    report = checkpoints.load(model, VIT_TOKEN, channels="tile")
    assert report.adapted == [(EMBEDDING, (8, 8, 4, 64), (3, 4, "tile"))]
    assert EMBEDDING not in {name for name, _ in report.loaded}
    assert 'adapted embedding/kernel from 3 to 4 channels by "tile", (8, 8, 4, 64)' in str(report)
    expected = weights_of(small_model(weights=VIT_TOKEN))
    rgb_kernel = expected[EMBEDDING].reshape(8, 8, 3, 64)
    kernel = rgb_kernel[:, :, [0, 1, 2, 0]] * np.float32(0.75)
    expected[EMBEDDING] = kernel.reshape(-1, 64)
    assert_same_arrays(weights_of(model), expected)


@pytest.mark.parametrize("version, name", [(1, STEM_ROOT), (2, BIT_ROOT)])
def test_root_of_a_resnet_is_adapted(version, name, tmp_path):
    sizes = {"depth": 8, "width": 32, "version": version, "classes": 3}
    rgb = randomize(keras_vit.BiTResNet(**sizes, input_shape=(32, 32, 3)))
    gray = keras_vit.BiTResNet(**sizes, input_shape=(32, 32, 1))
    checkpoints.save(rgb, tmp_path / "rgb.npz")
    report = checkpoints.load(gray, tmp_path / "rgb.npz", channels="sum")
    assert report.adapted == [(name, (7, 7, 1, 32), (3, 1, "sum"))]
    expected = weights_of(rgb)[name].sum(axis=2, keepdims=True)
    np.testing.assert_allclose(weights_of(gray)[name], expected, atol=1e-5)


def test_different_number_of_channels_requires_a_rule():
    model = small_model(input_shape=(32, 32, 4))
    assert_rejected(VIT_TOKEN, "with 3 channels, .* takes 4", model)


def test_one_channel_cannot_be_tiled():
    model = small_model(input_shape=(32, 32, 1))
    with pytest.raises(ValueError, match='"tile" would keep only the first channel'):
        checkpoints.load(model, VIT_TOKEN, channels="tile")


def test_rejects_kernel_of_another_patch_shape(tmp_path):
    arrays = read_arrays(VIT_TOKEN)
    arrays[EMBEDDING] = random_images((8, 4, 1, 64))
    np.savez(tmp_path / "narrow.npz", **arrays)
    with pytest.raises(ValueError, match="as in the model"):
        checkpoints.load(small_model(), tmp_path / "narrow.npz", channels="sum")
