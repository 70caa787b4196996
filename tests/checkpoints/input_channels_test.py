"""Tests of loading weights into models with a different number of input channels."""

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.names import BIT_ROOT, EMBEDDING, STEM_ROOT
from keras_vit.checkpoints.patch_kernels import adapt_input_channels

from ..shared import (
    GOLDEN,
    assert_same_arrays,
    assert_same_weights,
    random_images,
    randomize,
    read_arrays,
    to_numpy,
)
from .helpers import VIT_TOKEN, assert_rejected, publish_tiny, small_model, weights_of

pytestmark = pytest.mark.one_backend  # checkpoints are converted in numpy

HYBRID = {"patch_size": 1, "resnet_blocks": (1, 2)}


def adapt_input_conv(channels, kernel):
    """Reimplements timm's `adapt_input_conv` for RGB kernels `(out, in, height, width)`."""
    if channels == 1:
        return kernel.sum(1, keepdims=True)
    repeats = -(-channels // 3)
    return np.tile(kernel, (1, repeats, 1, 1))[:, :channels] * (3 / channels)


@pytest.mark.parametrize(
    "channels, rule", [(1, "sum"), (2, "tile"), (4, "tile"), (6, "tile"), (13, "tile")]
)
def test_channel_rules_match_timm(channels, rule):
    kernel = random_images((5, 7, 3, 11))
    expected = adapt_input_conv(channels, kernel.transpose(3, 2, 0, 1)).transpose(2, 3, 1, 0)
    result = adapt_input_channels(kernel, channels, rule)
    assert result.dtype == np.float32
    assert result.shape == (5, 7, channels, 11)
    np.testing.assert_allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize(
    "file, arguments",
    [("vit_token.ckpt.npz", {}), ("timm_token.safetensors", {"exact_gelu": True})],
)
def test_sum_preserves_logits_of_gray_images(channels, file, arguments):
    rgb = small_model(weights=GOLDEN / file, **arguments)
    model = small_model(input_shape=(32, 32, channels), **arguments)
    checkpoints.load(model, GOLDEN / file, channels="sum")
    gray = random_images((3, 32, 32, 1))
    logits = to_numpy(model(gray.repeat(channels, axis=-1)))
    np.testing.assert_allclose(logits, rgb(gray.repeat(3, axis=-1)), atol=1e-5)


@pytest.mark.parametrize(
    "file, side, arguments, atol",
    [
        ("vit_token.ckpt.npz", 32, {}, 1e-5),
        ("hybrid_2stage.ckpt.npz", 64, HYBRID, 2e-3),
    ],
)
def test_tile_preserves_logits_of_repeated_rgb(file, side, arguments, atol):
    rgb = small_model(input_shape=(side, side, 3), weights=GOLDEN / file, **arguments)
    model = small_model(input_shape=(side, side, 6), **arguments)
    checkpoints.load(model, GOLDEN / file, channels="tile")
    images = random_images((2, side, side, 3))
    expected = to_numpy(rgb(images))
    assert np.abs(expected).max() > 20 * atol
    logits = to_numpy(model(np.tile(images, (1, 1, 1, 2))))
    np.testing.assert_allclose(logits, expected, atol=atol)


@pytest.fixture
def gray_file(tmp_path):
    """Returns a model for one channel, and the path of a file with its weights."""
    gray = small_model(input_shape=(32, 32, 1))
    checkpoints.load(gray, VIT_TOKEN, channels="sum")
    checkpoints.save(gray, tmp_path / "gray.npz")
    return gray, tmp_path / "gray.npz"


def test_one_channel_model_is_restored(gray_file):
    gray, path = gray_file
    assert read_arrays(path)[EMBEDDING].shape == (8, 8, 1, 64)
    assert_same_weights(small_model(input_shape=(32, 32, 1), weights=path), gray)
    _, arguments = checkpoints.infer_architecture(path)
    assert arguments["input_shape"] == (32, 32, 1)


# For a one-channel file, both rules give the same weights.
@pytest.mark.parametrize("rule", ["sum", "tile"])
def test_one_channel_weights_load_into_rgb(rule, gray_file):
    gray, path = gray_file
    rgb = small_model()
    checkpoints.load(rgb, path, channels=rule)
    images = random_images((2, 32, 32, 1))
    logits = to_numpy(rgb(images.repeat(3, axis=-1)))
    np.testing.assert_allclose(logits, gray(images), atol=1e-5)


def test_only_the_first_kernel_is_adapted():
    model = small_model(input_shape=(32, 32, 4))
    report = checkpoints.load(model, VIT_TOKEN, channels="tile")
    assert report.adapted == [(EMBEDDING, (8, 8, 4, 64), (3, 4, "tile"))]
    assert len(report.loaded) == 39
    assert EMBEDDING not in {name for name, _ in report.loaded}
    assert 'adapted embedding/kernel from 3 to 4 channels by "tile", (8, 8, 4, 64)' in str(report)
    expected = weights_of(small_model(weights=VIT_TOKEN))
    rgb_kernel = expected[EMBEDDING].reshape(8, 8, 3, 64)
    kernel = rgb_kernel[:, :, [0, 1, 2, 0]] * np.float32(0.75)
    expected[EMBEDDING] = kernel.reshape(-1, 64)
    assert_same_arrays(weights_of(model), expected)


def test_equal_channels_are_not_adapted():
    model = small_model()
    report = checkpoints.load(model, VIT_TOKEN, channels="sum")
    assert not report.adapted
    assert len(report.loaded) == 40
    assert_same_weights(model, small_model(weights=VIT_TOKEN))


def build_resnet(version, channels):
    """Returns a ResNet and its first convolution."""
    model = keras_vit.BiTResNet(
        depth=26, version=version, input_shape=(32, 32, channels), classes=3
    )
    stem = model.get_layer("resnet_stem" if version == 1 else "resnet")
    return model, stem.conv_root


@pytest.mark.parametrize("version, name", [(1, STEM_ROOT), (2, BIT_ROOT)])
def test_bit_root_responses_to_gray_differ_only_by_scale(version, name, tmp_path):
    rgb, rgb_root = build_resnet(version, 3)
    gray, gray_root = build_resnet(version, 1)
    randomize(rgb, seed=1)
    checkpoints.save(rgb, tmp_path / "rgb.npz")
    report = checkpoints.load(gray, tmp_path / "rgb.npz", channels="sum")
    assert report.adapted == [(name, (7, 7, 1, 64), (3, 1, "sum"))]
    images = random_images((1, 32, 32, 1))
    expected = to_numpy(rgb_root(images.repeat(3, axis=-1))).reshape(-1, 64)
    response = to_numpy(gray_root(images)).reshape(-1, 64)
    # Kernels are standardized, which changes the scale of each output channel.
    factors = (expected * response).sum(0) / (response * response).sum(0)
    assert factors.min() > 0.5
    np.testing.assert_allclose(response * factors, expected, atol=1e-3)


@pytest.mark.parametrize(
    "file, side, channels, arguments",
    [
        ("vit_token.ckpt.npz", 32, 1, {}),
        ("vit_token.ckpt.npz", 32, 12, {}),
        ("hybrid_2stage.ckpt.npz", 64, 4, HYBRID),
    ],
)
def test_different_number_of_channels_requires_a_rule(file, side, channels, arguments):
    model = small_model(input_shape=(side, side, channels), **arguments)
    message = rf'with 3 channels, .* takes {channels}.*channels="sum" or channels="tile"'
    assert_rejected(GOLDEN / file, message, model)


def test_rejects_unknown_rule():
    with pytest.raises(ValueError, match='"sum", "tile" or None.*channels=.mean'):
        checkpoints.load(small_model(), VIT_TOKEN, channels="mean")


def test_rejects_kernel_of_another_patch_shape(tmp_path):
    arrays = read_arrays(VIT_TOKEN)
    arrays[EMBEDDING] = random_images((8, 4, 1, 64))
    np.savez(tmp_path / "narrow.npz", **arrays)
    with pytest.raises(ValueError, match="must be .*, as in the model"):
        checkpoints.load(small_model(), tmp_path / "narrow.npz", channels="sum")


def test_published_weights_adapt_to_channels(tmp_path, monkeypatch):
    rgb = publish_tiny(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match='channels="sum"'):
        keras_vit.ViT_Ti16(weights="sam", input_shape=(32, 32, 1))
    model = keras_vit.ViT_Ti16(input_shape=(32, 32, 1), classes=5)
    report = checkpoints.load(model, "sam", channels="sum")
    assert report.adapted == [(EMBEDDING, (16, 16, 1, 192), (3, 1, "sum"))]
    gray = random_images((1, 32, 32, 1))
    np.testing.assert_allclose(model(gray), rgb(gray.repeat(3, axis=-1)), atol=1e-5)
    assert keras_vit.preprocessing_of(model).mean == (127.5,)
