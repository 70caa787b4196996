"""Tests of resizes, crops and value ranges against numpy and Pillow."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from scipy import ndimage

from keras_vit import Preprocessing
from keras_vit.data import images, inputs, transforms

IMAGE = np.random.default_rng(1).integers(0, 256, (13, 22, 3), np.uint8)


def bilinear(height, width):
    """Resizes IMAGE by linear interpolation with half-pixel centers, without antialiasing."""
    factors = (height / 13, width / 22, 1)
    return ndimage.zoom(IMAGE.astype(float), factors, order=1, mode="nearest", grid_mode=True)


def area_1d(values, size):
    """Resizes the first axis. Each new value is the mean of an interval of old values."""
    n = len(values)
    edges = np.arange(size + 1) * n / size
    starts = np.maximum(edges[:-1, None], np.arange(n))
    ends = np.minimum(edges[1:, None], np.arange(1, n + 1))
    overlap = np.clip(ends - starts, 0, None)
    return np.tensordot(overlap / overlap.sum(1, keepdims=True), values, 1)


@pytest.mark.parametrize("size", [(7, 9), (30, 40)])
def test_resize_is_bilinear_with_half_pixel_centers(size):
    actual = transforms.resize(IMAGE, size)
    assert actual.dtype == tf.float32
    np.testing.assert_allclose(actual, bilinear(*size), atol=1e-3)


@pytest.mark.parametrize("size", [(7, 9), (30, 40)])
@pytest.mark.parametrize("kind", ["bilinear", "bicubic"])
def test_antialiased_resize_matches_pillow(kind, size):
    gray = Image.fromarray(IMAGE[..., 0].astype("float32"))
    expected = np.clip(gray.resize(size[::-1], Image.Resampling[kind.upper()]), 0, 255)
    actual = transforms.resize(IMAGE[..., :1], size, interpolation=kind)
    np.testing.assert_allclose(actual[..., 0], expected, atol=5e-3)


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
def test_evaluation_image_matches_timm_and_transformers(case, size, fields, golden):
    arrays = golden("preprocessing")
    preprocessing = Preprocessing(
        mean=(0,) * 3,
        std=(1,) * 3,
        **{"resize": "shorter_side", "interpolation": "bicubic", "library": "torchvision"} | fields,
    )
    decoded = images.decode(tf.constant(arrays["jpeg"].tobytes()), library=preprocessing.library)
    actual = inputs.kind_for(preprocessing).evaluation_image(decoded, size, preprocessing)
    # Pillow also rounds between its two passes.
    difference = np.abs(np.rint(actual) - arrays[case].astype(float))
    assert difference.max() <= 2 and difference.mean() < 0.2


def test_rounding_to_uint8_truncates():
    exact = bilinear(30, 40)
    actual = transforms.resize(IMAGE, (30, 40), rounding="uint8")
    assert actual.dtype == tf.uint8
    clear = np.abs(exact - np.round(exact)) > 1e-3
    np.testing.assert_array_equal(actual.numpy()[clear], np.floor(exact).astype(np.uint8)[clear])


@pytest.mark.parametrize(
    ("image", "smaller", "expected"),
    [
        (IMAGE, 6, (6, 10)),
        (IMAGE[:, :6], 3, (6, 3)),
    ],
    ids=["wide", "high"],
)
def test_resize_to_cover_keeps_the_aspect_ratio(image, smaller, expected):
    actual = transforms.resize_to_cover(image, (smaller, smaller))
    rows = area_1d(image, expected[0])
    means = area_1d(rows.swapaxes(0, 1), expected[1]).swapaxes(0, 1)
    np.testing.assert_allclose(actual, means, atol=2e-3)


def test_central_crop_rounds_its_offsets_down():
    np.testing.assert_array_equal(transforms.central_crop(IMAGE, (6, 7)), IMAGE[3:9, 7:14])


def test_inception_windows_cover_the_area_and_aspect_ranges():
    windows = np.array([transforms.inception_window([300, 400], [7, i]) for i in range(400)])
    y, x, height, width = windows.T
    assert windows.min() >= 0 and (y + height).max() <= 300 and (x + width).max() <= 400
    share = height * width / 120000
    aspect = width / height
    # Sides are rounded to whole pixels, so the bounds are not exact.
    assert 0.045 < share.min() < 0.1 and 0.9 < share.max() <= 1.0
    assert 0.74 < aspect.min() < 0.8 and 1.28 < aspect.max() < 1.345
    assert 0.25 < share.mean() < 0.65
    assert len(np.unique(windows, axis=0)) > 390


def test_random_shift_moves_whole_pixels():
    padded = np.pad(IMAGE, [[1, 1], [1, 1], [0, 0]])
    windows = {padded[y : y + 13, x : x + 22].tobytes() for y in range(3) for x in range(3)}
    shifted = {
        transforms.random_shift(tf.constant(IMAGE), 1, [3, i]).numpy().tobytes() for i in range(60)
    }
    assert shifted == windows
