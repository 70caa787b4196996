"""Tests of the sixteen RandAugment operations against Pillow or numpy."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps
from scipy import ndimage

from keras_vit import data
from keras_vit.data import examples
from keras_vit.data import randaugment as ra

SMALL = np.random.default_rng(2).integers(30, 200, (4, 5, 3), np.uint8)
# Both images are smooth, not square, and have gaps in their histograms. FLAT has a constant
# channel.
IMAGE = np.asarray(Image.fromarray(SMALL).resize((37, 24), Image.BICUBIC))
FLAT = IMAGE * np.uint8([1, 0, 1]) + np.uint8([0, 77, 0])


def pillow(function, image, *args):
    return np.asarray(function(Image.fromarray(image), *args))


@pytest.mark.parametrize("image", [IMAGE, FLAT], ids=["photo", "flat channel"])
def test_equalize_matches_pillow(image):
    np.testing.assert_array_equal(ra.equalize(image), pillow(ImageOps.equalize, image))


def test_autocontrast_stretches_each_channel_that_is_not_constant():
    low, high = FLAT.min((0, 1)), FLAT.max((0, 1))
    scale = np.float32(255) / np.maximum(high - low, 1)
    expected = np.where(high > low, FLAT * scale - low * scale, FLAT).clip(0, 255)
    # A fused multiply-add rounds once instead of twice, so truncated values may differ by 1.
    difference = np.abs(ra.autocontrast(FLAT).numpy().astype(int) - expected.astype(np.uint8))
    assert difference.max() <= 1 and (difference > 0).mean() < 0.01


def test_invert_matches_pillow():
    np.testing.assert_array_equal(ra.invert(IMAGE), pillow(ImageOps.invert, IMAGE))


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_posterize_matches_pillow(bits):
    np.testing.assert_array_equal(
        ra.posterize(IMAGE, bits), pillow(ImageOps.posterize, IMAGE, bits)
    )


def test_posterize_keeps_at_least_one_bit():
    np.testing.assert_array_equal(ra.posterize(IMAGE, 0), IMAGE & 0x80)


@pytest.mark.parametrize("threshold", [0, IMAGE.max(), 256])
def test_solarize_inverts_at_and_above_the_threshold(threshold):
    expected = pillow(ImageOps.solarize, IMAGE, int(threshold))
    np.testing.assert_array_equal(ra.solarize(tf.constant(IMAGE), threshold), expected)


def test_solarize_add_adds_below_128():
    expected = np.where(IMAGE < 128, np.minimum(IMAGE.astype(int) + 165, 255), IMAGE)
    np.testing.assert_array_equal(ra.solarize_add(tf.constant(IMAGE), 165), expected)


def blend(start, factor, image=IMAGE):
    start = np.float32(start)
    return np.clip(start + np.float32(factor) * (image - start), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("factor", [0.1, 2.8])
def test_color_operations_blend_with_their_degenerate_image(factor):
    gray = tf.image.rgb_to_grayscale(IMAGE).numpy()
    np.testing.assert_array_equal(ra.color(IMAGE, factor), blend(gray, factor))
    np.testing.assert_array_equal(ra.contrast(IMAGE, factor), blend(np.floor(gray.mean()), factor))
    np.testing.assert_array_equal(ra.brightness(IMAGE, factor), blend(0, factor))


@pytest.mark.parametrize("side", [20, 300])
def test_original_contrast_blends_with_mean_histogram_count(side):
    image = np.full((side, 17, 3), 90, np.uint8)
    image[::2] = 40
    mean_count = min(side * 17 // 256, 255)  # 1 for side 20, and 19 for side 300
    actual = ra.operations(10, original=True)["Contrast"](tf.constant(image), 1.0, 0.0, 0.0)
    np.testing.assert_array_equal(actual, blend(mean_count, 1.9, image))


def test_randaugment_form_selects_original_operations(monkeypatch):
    forms = set()

    def note_form(image, layers, magnitude, seed, original):
        forms.add(original)
        return image

    monkeypatch.setattr(examples, "randaugment", note_form)
    source = data.arrays(np.zeros((1, 128, 128, 3), np.uint8), [0], ["a"])
    options = {"randaugment_layers": 1, "randaugment_form": "original"}
    next(iter(data.train_batches(source, batch_size=1, seed=0, **options)))
    assert forms == {True}


@pytest.mark.parametrize("factor", [0.1, 2.8])
def test_sharpness_blends_with_a_smoothed_image(factor):
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]])[..., None] / 13
    smooth = np.floor(ndimage.correlate(IMAGE.astype(float), kernel) + 1e-4)
    expected = IMAGE.copy()
    expected[1:-1, 1:-1] = blend(smooth, factor)[1:-1, 1:-1]
    difference = np.abs(ra.sharpness(IMAGE, factor).numpy().astype(int) - expected)
    assert difference.max() <= 3 and (difference > 0).mean() < 0.01


def nearest(matrix):
    """Returns IMAGE after an affine transform with nearest-neighbor sampling.

    The output pixel (x, y) is the input pixel nearest to (a x + b y + c, d x + e y + f). It is gray
    if that point is outside the image.
    """
    a, b, c, d, e, f = np.float32(matrix)
    height, width, _ = IMAGE.shape
    moved = np.full_like(IMAGE, 128)
    for y in range(height):
        for x in range(width):
            column = np.round(a * x + b * y + c)
            row = np.round(d * x + e * y + f)
            if 0 <= column < width and 0 <= row < height:
                moved[y, x] = IMAGE[int(row), int(column)]
    return moved


@pytest.mark.parametrize("degrees", [45.0, -30.0])
def test_rotate_turns_about_the_center(degrees):
    cos = np.cos(np.radians(degrees))
    sin = np.sin(np.radians(degrees))
    x = 36 / 2
    y = 23 / 2
    matrix = [cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y]
    # A point halfway between two pixels may round to either pixel.
    assert (ra.rotate(IMAGE, tf.constant(degrees)).numpy() != nearest(matrix)).any(-1).mean() < 0.01


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_shear_and_translate_match_nearest_neighbor(sign):
    slope = sign * 0.43
    distance = sign * 9.0
    for actual, matrix in (
        (ra.shear(IMAGE, slope, 1), [1, slope, 0, 0, 1, 0]),
        (ra.shear(IMAGE, slope, 0), [1, 0, 0, slope, 1, 0]),
        (ra.translate(IMAGE, distance, 1), [1, 0, distance, 0, 1, 0]),
        (ra.translate(IMAGE, distance, 0), [1, 0, 0, 0, 1, distance]),
    ):
        np.testing.assert_array_equal(actual, nearest(matrix))


def test_cutout_fills_a_clipped_square_with_gray():
    expected = IMAGE.copy()
    expected[:7, 20:30] = 128
    np.testing.assert_array_equal(ra.cutout(tf.constant(IMAGE), 5, 2, 25), expected)


def test_magnitude_15_sets_operation_parameters():
    image = tf.constant(IMAGE)
    expected = {
        "AutoContrast": ra.autocontrast(image),
        "Equalize": ra.equalize(image),
        "Invert": ra.invert(image),
        "Rotate": ra.rotate(image, -45.0),
        "Posterize": ra.posterize(image, 6),
        "Solarize": image,
        "Color": ra.color(image, 2.8),
        "Contrast": ra.contrast(image, 2.8),
        "Brightness": ra.brightness(image, 2.8),
        "Sharpness": ra.sharpness(image, 2.8),
        "ShearX": ra.shear(image, -0.45, 1),
        "ShearY": ra.shear(image, -0.45, 0),
        "TranslateX": nearest([1, 0, -150 * 37 / 224, 0, 1, 0]),
        "TranslateY": nearest([1, 0, 0, 0, 1, -150 * 24 / 224]),
        "Cutout": ra.cutout(image, 60 * 24 // 224, 12, 9),
        "SolarizeAdd": ra.solarize_add(image, 165),
    }
    operations = ra.operations(15)
    assert list(operations) == list(expected)
    for name, operation in operations.items():
        actual = operation(image, -1.0, 0.5, 0.25)
        np.testing.assert_array_equal(actual, expected[name], err_msg=name)


def test_original_solarize_takes_the_threshold_modulo_256():
    solarized = ra.operations(15, original=True)["Solarize"](tf.constant(IMAGE), 1.0, 0.0, 0.0)
    expected = pillow(ImageOps.solarize, IMAGE, 384 % 256)  # magnitude 15 has the threshold 384
    np.testing.assert_array_equal(solarized, expected)


def test_original_distances_are_not_scaled_by_the_size_of_the_image():
    moved = ra.operations(1, original=True)["TranslateX"](tf.constant(IMAGE), -1.0, 0.0, 0.0)
    np.testing.assert_array_equal(moved, nearest([1, 0, -10, 0, 1, 0]))


def test_augreg_levels_match_the_paper():
    assert ra.LEVELS == {
        "none": (0, 0, 0),
        "light1": (2, 0, 0),
        "light2": (2, 10, 0.2),
        "medium1": (2, 15, 0.2),
        "medium2": (2, 15, 0.5),
        "strong1": (2, 20, 0.5),
        "strong2": (2, 20, 0.8),
    }


def test_operations_are_drawn_uniformly_and_follow_the_seed():
    image = tf.constant(IMAGE)
    run = tf.function(lambda seed: ra.randaugment(image, 1, 1, seed, original=True))
    known = {}
    for name, apply in ra.operations(1, original=True).items():
        for sign in (1.0, -1.0):
            known.setdefault(apply(image, sign, 0.0, 0.0).numpy().tobytes(), name)
    counts = collections.Counter()
    for i in range(640):
        actual = run(tf.constant([5, i])).numpy().tobytes()
        counts[known.get(actual, "Cutout")] += 1  # whose position is random
    # Each operation is drawn 40 times on average. The bounds are 3.5 standard deviations away.
    assert len(counts) == 16 and min(counts.values()) > 18 and max(counts.values()) < 62, counts
    np.testing.assert_array_equal(run(tf.constant([5, 3])), run(tf.constant([5, 3])))
