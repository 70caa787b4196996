"""Tests of loading weights into models with a different number of input channels."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints, families
from keras_vit.checkpoints import published
from keras_vit.checkpoints.names import BIT_ROOT, EMBEDDING, STEM_ROOT
from keras_vit.checkpoints.patch_kernels import adapt_input_channels

from ..shared import random_images, randomize

pytestmark = pytest.mark.one_backend  # checkpoints are converted in numpy

HYBRID = {"patch_size": 1, "resnet_blocks": (1, 2)}


def logits(model, images):
    return keras.ops.convert_to_numpy(model(images))


def random(*shape):
    return random_images(shape)


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
    kernel = random(5, 7, 3, 11)
    expected = adapt_input_conv(channels, kernel.transpose(3, 2, 0, 1)).transpose(2, 3, 1, 0)
    result = adapt_input_channels(kernel, channels, rule)
    assert result.dtype == np.float32 and result.shape == (5, 7, channels, 11)
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
    gray = random(3, 32, 32, 1)
    expected = logits(rgb, gray.repeat(3, axis=-1))
    np.testing.assert_allclose(logits(model, gray.repeat(channels, axis=-1)), expected, atol=1e-5)


@pytest.mark.parametrize(
    "file, arguments, atol",
    [
        ("vit_token.ckpt.npz", {"input_shape": (32, 32)}, 1e-5),
        ("hybrid_2stage.ckpt.npz", {"input_shape": (64, 64), **HYBRID}, 2e-3),
    ],
)
def test_tile_preserves_logits_of_repeated_rgb(file, arguments, atol):
    arguments = dict(arguments)
    sides = arguments.pop("input_shape")
    rgb = small_model(input_shape=(*sides, 3), weights=GOLDEN / file, **arguments)
    model = small_model(input_shape=(*sides, 6), **arguments)
    checkpoints.load(model, GOLDEN / file, channels="tile")
    images = random(2, *sides, 3)
    expected = logits(rgb, images)
    assert np.abs(expected).max() > 20 * atol
    np.testing.assert_allclose(logits(model, np.tile(images, (1, 1, 1, 2))), expected, atol=atol)


def test_one_channel_weights_load_into_rgb(tmp_path):
    gray = small_model(input_shape=(32, 32, 1))
    checkpoints.load(gray, GOLDEN / "vit_token.ckpt.npz", channels="sum")
    checkpoints.save(gray, tmp_path / "gray.npz")
    assert read_arrays(tmp_path / "gray.npz")[EMBEDDING].shape == (8, 8, 1, 64)
    again = small_model(input_shape=(32, 32, 1), weights=tmp_path / "gray.npz")
    for name, value in weights_of(gray).items():
        np.testing.assert_array_equal(weights_of(again)[name], value)
    assert checkpoints.infer_architecture(tmp_path / "gray.npz")[1]["input_shape"] == (32, 32, 1)
    images = random(2, 32, 32, 1)
    for rule in ("sum", "tile"):  # for a one-channel file, both rules give the same weights
        rgb = small_model()
        checkpoints.load(rgb, tmp_path / "gray.npz", channels=rule)
        np.testing.assert_allclose(
            logits(rgb, images.repeat(3, axis=-1)), logits(gray, images), atol=1e-5
        )


def test_only_the_first_kernel_is_adapted():
    source = GOLDEN / "vit_token.ckpt.npz"
    rgb = small_model(weights=source)
    model = small_model(input_shape=(32, 32, 4))
    report = checkpoints.load(model, source, channels="tile")
    assert report.adapted == [(EMBEDDING, (8, 8, 4, 64), (3, 4, "tile"))]
    assert len(report.loaded) == 39 and EMBEDDING not in {name for name, _ in report.loaded}
    assert 'adapted embedding/kernel from 3 to 4 channels by "tile", (8, 8, 4, 64)' in str(report)
    expected = weights_of(rgb)
    for name, value in weights_of(model).items():
        if name == EMBEDDING:
            kernel = expected[name].reshape(8, 8, 3, 64)[:, :, [0, 1, 2, 0]] * np.float32(0.75)
            np.testing.assert_array_equal(value.reshape(8, 8, 4, 64), kernel)
        else:
            np.testing.assert_array_equal(value, expected[name])


def test_equal_channels_are_not_adapted():
    model = small_model()
    report = checkpoints.load(model, GOLDEN / "vit_token.ckpt.npz", channels="sum")
    assert not report.adapted and len(report.loaded) == 40
    for name, value in weights_of(small_model(weights=GOLDEN / "vit_token.ckpt.npz")).items():
        np.testing.assert_array_equal(weights_of(model)[name], value)


@pytest.mark.parametrize("version", [1, 2])
def test_bit_root_responses_to_gray_differ_only_by_scale(version, tmp_path):
    def build(channels):
        return keras_vit.BiTResNet(
            depth=26, version=version, input_shape=(32, 32, channels), classes=3
        )

    rgb = build(3)
    gray = build(1)
    randomize(rgb, seed=1)
    checkpoints.save(rgb, tmp_path / "rgb.npz")
    report = checkpoints.load(gray, tmp_path / "rgb.npz", channels="sum")
    name = STEM_ROOT if version == 1 else BIT_ROOT
    assert report.adapted == [(name, (7, 7, 1, 64), (3, 1, "sum"))]
    images = random(1, 32, 32, 1)
    roots = [
        model.get_layer("resnet_stem" if version == 1 else "resnet").conv_root
        for model in (rgb, gray)
    ]
    expected, response = (
        logits(root, images.repeat(channels, axis=-1)).reshape(-1, 64)
        for root, channels in zip(roots, (3, 1))
    )
    factors = (expected * response).sum(0) / (response * response).sum(0)
    assert factors.min() > 0.5
    np.testing.assert_allclose(response * factors, expected, atol=1e-3)


@pytest.mark.parametrize(
    "file, channels, arguments",
    [
        ("vit_token.ckpt.npz", 1, {}),
        ("vit_token.ckpt.npz", 12, {}),
        ("hybrid_2stage.ckpt.npz", 4, {"input_shape": (64, 64), **HYBRID}),
    ],
)
def test_different_number_of_channels_requires_a_rule(file, channels, arguments):
    sides = arguments.get("input_shape", (32, 32))
    model = small_model(**{**arguments, "input_shape": (*sides, channels)})
    before = weights_of(model)
    message = rf'with 3 channels, .* takes {channels}.*channels="sum" or channels="tile"'
    for head in ("keep", "new"):
        with pytest.raises(ValueError, match=message):
            checkpoints.load(model, GOLDEN / file, head=head)
    for name, value in weights_of(model).items():
        np.testing.assert_array_equal(value, before[name])


def test_rejects_unknown_rule_and_mismatched_kernel(tmp_path):
    with pytest.raises(ValueError, match='"sum", "tile" or None.*channels=.mean'):
        checkpoints.load(small_model(), GOLDEN / "vit_token.ckpt.npz", channels="mean")
    several_axes = read_arrays(GOLDEN / "vit_token.ckpt.npz") | {EMBEDDING: random(8, 4, 1, 64)}
    np.savez(tmp_path / "several.npz", **several_axes)
    with pytest.raises(ValueError, match="must be .*, as in the model"):
        checkpoints.load(small_model(), tmp_path / "several.npz", channels="sum")


def test_published_weights_adapt_to_channels(tmp_path, monkeypatch):
    row = families.PublishedWeights(
        "sam", "tiny", "ViT-Ti/16", "gs://vit_models/sam/tiny.npz", 5, 32
    )
    monkeypatch.setattr(published, "rows", lambda: [row])
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    (tmp_path / "sam").mkdir()
    rgb = keras_vit.ViT_Ti16(input_shape=(32, 32, 3), classes=5)
    rgb.get_layer("head").kernel.assign(np.ones((192, 5)))
    checkpoints.save(rgb, tmp_path / "sam" / "tiny.npz")
    with pytest.raises(ValueError, match='channels="sum"'):
        keras_vit.ViT_Ti16(weights="sam", input_shape=(32, 32, 1))
    model = keras_vit.ViT_Ti16(input_shape=(32, 32, 1), classes=5)
    report = checkpoints.load(model, "sam", channels="sum")
    assert report.adapted == [(EMBEDDING, (16, 16, 1, 192), (3, 1, "sum"))]
    gray = random(1, 32, 32, 1)
    np.testing.assert_allclose(logits(model, gray), logits(rgb, gray.repeat(3, axis=-1)), atol=1e-5)
    assert keras_vit.preprocessing_of(model).mean == (127.5,)
