"""Tests of resizes, crops and value ranges against numpy and Pillow."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data import images, inputs, transforms

from ..shared import GOLDEN

RNG = np.random.default_rng(1)
IMAGE = RNG.integers(0, 256, (13, 22, 3), dtype=np.uint8)


def bilinear_1d(values, size):
    """Resizes the first axis by linear interpolation with half-pixel centers. Edge values are
    repeated."""
    n = len(values)
    at = (np.arange(size) + 0.5) * n / size - 0.5
    low = np.floor(at).astype(int)
    share = (at - low).reshape(-1, *[1] * (values.ndim - 1))
    return values[np.clip(low, 0, n - 1)] * (1 - share) + values[np.clip(low + 1, 0, n - 1)] * share


def area_1d(values, size):
    """Resizes the first axis. Each new value is the mean of an interval of old values."""
    n = len(values)
    edges = np.arange(size + 1) * n / size
    overlap = np.minimum(edges[1:, None], np.arange(1, n + 1)) - np.maximum(
        edges[:-1, None], np.arange(n)
    )
    overlap = np.clip(overlap, 0, None)
    return np.tensordot(overlap / overlap.sum(1, keepdims=True), values, 1)


def resized(function, image, height, width):
    rows = function(image.astype(np.float64), height)
    return function(rows.swapaxes(0, 1), width).swapaxes(0, 1)


@pytest.mark.parametrize("size", [(7, 9), (30, 40)])
def test_resize_is_bilinear_with_half_pixel_centers(size):
    actual = transforms.resize(IMAGE, size)
    assert actual.dtype == tf.float32
    np.testing.assert_allclose(actual, resized(bilinear_1d, IMAGE, *size), atol=1e-3)


@pytest.mark.parametrize("size", [(7, 9), (30, 40)])
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_antialiased_resize_matches_pillow(kind, size):
    channels = [Image.fromarray(channel.astype("float32")) for channel in IMAGE.transpose(2, 0, 1)]
    resized = [
        channel.resize(size[::-1], getattr(Image.Resampling, kind.upper())) for channel in channels
    ]
    expected = np.stack([np.asarray(channel) for channel in resized], axis=-1).clip(0, 255)
    np.testing.assert_allclose(
        transforms.resize(IMAGE, size, interpolation=kind), expected, atol=5e-3
    )


def test_evaluation_image_uses_the_given_interpolation():
    preprocessing = Preprocessing(
        mean=(0,) * 3, std=(1,) * 3, resize="shorter_side", interpolation="bicubic"
    )
    actual = inputs.kind_for(preprocessing).evaluation_image(IMAGE, (7, 7), preprocessing)
    side = (7, 11)  # the width 7 * 22 / 13 = 11.8 is truncated, as in torchvision
    expected = transforms.central_crop(
        transforms.resize(IMAGE, side, interpolation="bicubic"), (7, 7)
    )
    np.testing.assert_allclose(actual, expected)


@pytest.mark.parametrize(
    ("case", "size", "fields"),
    [
        ("timm_center", (24, 24), {"crop_fraction": 0.9}),
        ("timm_squash", (24, 24), {"crop_fraction": 0.9, "resize": "stretch"}),
        ("timm_bilinear", (24, 24), {"interpolation": "bilinear"}),
        ("timm_wide", (16, 24), {"crop_fraction": 0.9}),
        ("transformers_center", (24, 24), {"crop_fraction": 24 / 26, "library": "transformers"}),
    ],
)
def test_evaluation_image_matches_timm_and_transformers(case, size, fields):
    with np.load(GOLDEN / "preprocessing.npz") as golden:
        file = tf.constant(golden["jpeg"].tobytes())
        expected = golden[case].astype(float)
    fields = {
        "resize": "shorter_side",
        "interpolation": "bicubic",
        "library": "torchvision",
        **fields,
    }
    preprocessing = Preprocessing(mean=(0,) * 3, std=(1,) * 3, **fields)
    actual = inputs.kind_for(preprocessing).evaluation_image(
        images.decode(file, library=fields["library"]), size, preprocessing
    )
    difference = np.abs(np.rint(actual) - expected)  # Pillow also rounds between its two passes
    assert difference.max() <= 2 and difference.mean() < 0.2


def test_rounding_to_uint8_truncates():
    exact = resized(bilinear_1d, IMAGE, 30, 40)
    actual = transforms.resize(IMAGE, (30, 40), rounding="uint8")
    assert actual.dtype == tf.uint8
    clear = np.abs(exact - np.round(exact)) > 1e-3
    np.testing.assert_array_equal(actual.numpy()[clear], np.floor(exact).astype(np.uint8)[clear])


@pytest.mark.parametrize(
    ("shape", "smaller", "expected"),
    [((13, 22), 6, (6, 10)), ((22, 13), 6, (10, 6)), ((10, 25), 5, (5, 12))],
)
def test_resize_to_cover_keeps_the_aspect_ratio(shape, smaller, expected):
    image = RNG.integers(0, 256, (*shape, 3), dtype=np.uint8)
    actual = transforms.resize_to_cover(image, (smaller, smaller))
    assert actual.shape == (*expected, 3)
    np.testing.assert_allclose(actual, resized(area_1d, image, *expected), atol=2e-3)


def test_central_crop_rounds_its_offsets_down():
    np.testing.assert_array_equal(transforms.central_crop(IMAGE, (6, 7)), IMAGE[3:9, 7:14])


def test_normalization_matches_numpy():
    values = np.arange(256, dtype=np.uint8)
    expected = (values.astype(np.float32) - np.float32(127.5)) / np.float32(127.5)
    np.testing.assert_array_equal(transforms.normalize(values, Preprocessing()), expected)
    digits = Preprocessing(mean=[8.0] * 3, std=[8.0] * 3)
    assert transforms.normalize(np.uint8([0, 4, 16]), digits).numpy().tolist() == [-1, -0.5, 1]


def test_inception_windows_cover_the_area_and_aspect_ranges():
    windows = np.array([transforms.inception_window([300, 400], [7, i]) for i in range(400)])
    y, x, height, width = windows.T
    assert (
        (y >= 0).all() and (x >= 0).all() and (y + height <= 300).all() and (x + width <= 400).all()
    )
    share = height * width / 120000
    aspect = width / height
    # Sides are rounded to whole pixels, so the bounds are not exact.
    assert 0.045 < share.min() < 0.1 and 0.9 < share.max() <= 1.0
    assert 0.74 < aspect.min() < 0.8 and 1.28 < aspect.max() < 1.345
    assert 0.25 < share.mean() < 0.65
    assert len(np.unique(windows, axis=0)) > 390


def test_random_shift_moves_whole_pixels():
    seen = set()
    padded = np.pad(IMAGE, [[1, 1], [1, 1], [0, 0]])
    windows = {(y, x): padded[y : y + 13, x : x + 22].tobytes() for y in range(3) for x in range(3)}
    for i in range(60):
        actual = transforms.random_shift(tf.constant(IMAGE), 1, [3, i]).numpy().tobytes()
        seen |= {place for place, image in windows.items() if image == actual}
        assert actual in windows.values()
    assert len(seen) == 9
