"""Tests of the generated shapes. A second implementation in NumPy provides expected images."""

import math

import drawn_shapes  # noqa: F401 (registers the dataset)
import numpy as np
import pytest

from keras_vit import data

BACKGROUND = 0
MAIN = 4
# The ranges of the center, the radius and the period of a texture.
RANGES = {
    BACKGROUND: ((0, 1), (0.5, 0.5), (0.2, 0.5)),
    MAIN: ((0.35, 0.65), (0.15, 0.35), (0.4, 1)),
}
DISTRACTOR_RANGES = ((0.05, 0.95), (0.05, 0.12), (1, 1))


def finalized(number):
    """Applies the finalizer of splitmix64."""
    number &= 2**64 - 1
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        number = (number ^ number >> shift) * factor & 2**64 - 1
    return number ^ number >> 31


def draws_of(seed, split, index, count=50):
    """Returns the first random draws of one image, 64 bits each."""
    step = 0x9E3779B97F4A7C15
    key = finalized(finalized(seed + step) + (split + 1) * step)
    state = finalized(key + (index + 1) * step)
    return np.array([finalized(state + number * step) for number in range(1, count + 1)], "uint64")


def units_of(draws):
    """Returns the draws of the ten fields and five layers of an image, numbers in [0, 1)."""
    return (draws[:50] >> 40).reshape(10, 5) / 2**24


def outside(shape, points):
    """Returns numbers that are negative for points inside a shape of radius 1, and positive
    outside.

    Points are complex numbers. Near a straight edge, the absolute value is the distance from the
    edge. For a circle of radius R, the value is (r^2 - R^2) / 2 at distance r from the center.
    """

    def circle(radius, center=0):
        return (abs(points - center) ** 2 - radius**2) / 2

    def polygon(first_degrees, *distances):
        angles = np.radians(first_degrees + np.linspace(0, 360, len(distances), endpoint=False))
        planes = [(points * np.exp(-1j * a)).real - d for a, d in zip(angles, distances)]
        return np.max(planes, axis=0)

    triangle = polygon(60, 0.5, 0.5, 0.5)
    bar = (15 / 16, 5 / 16, 15 / 16, 5 / 16)
    return [
        circle(1),  # disc
        np.maximum(circle(1), -circle(0.5)),  # ring
        np.maximum(circle(1), points.real),  # half disc
        np.maximum(circle(1), -circle(0.75, 0.5)),  # crescent
        triangle,
        polygon(0, *4 * [11 / 16]),  # square
        np.minimum(triangle, polygon(0, 0.5, 0.5, 0.5)),  # star
        np.minimum(polygon(0, *bar), polygon(90, *bar)),  # cross
    ][shape]


def brightness(texture, cells):
    """Returns the brightness of points of a texture, given their coordinates in cells."""
    odd_x, odd_y = np.floor([cells.real, cells.imag]) % 2 == 1
    is_dark = [0 * odd_x, odd_x, odd_x ^ odd_y, odd_x & odd_y][texture]
    return 1 - 0.375 * is_dark[..., None]


def paint(color, channels):
    """Returns the values of one of the eight colors."""
    if channels == 1:
        return 255 * (color % 8 + 1) / 8
    return 127.5 * (1 + np.cos(2 * math.pi * (color / 8 - np.arange(channels) / 3)))


def between(low, high, share):
    return low + (high - low) * share


def expected_image(units, image_shape):
    """Returns an image `(H, W, C)` without noise, painted layer by layer."""
    height, width, channels = image_shape
    rows, columns = np.mgrid[:height, :width] + 0.5
    colors = units[6]
    main = int(8 * colors[MAIN])
    background = main + 1 + int(7 * colors[BACKGROUND])
    image = np.zeros(image_shape)
    for layer in (BACKGROUND, *range(1, 1 + int(4 * units[9, BACKGROUND])), MAIN):
        column, row, size, period, phase, rotation, _, shape, texture, _ = units[:, layer]
        centers, sizes, periods = RANGES.get(layer, DISTRACTOR_RANGES)
        x = columns - between(*centers, column) * width
        y = rows - between(*centers, row) * height
        radius = between(*sizes, size) * min(height, width)
        points = (x + 1j * y) / radius * np.exp(-2j * math.pi * int(1024 * rotation) / 1024)
        # A phase of 1 shifts the texture by two cells.
        cells = points / between(*periods, period) + 2 * phase * (1 + 1j)
        distractor = background + 1 + int(7 * colors[layer])
        color = {BACKGROUND: background, MAIN: main}.get(layer, distractor)
        texture = int(4 * texture) if layer in RANGES else 0
        opacity = 1
        if layer != BACKGROUND:  # with antialiasing
            opacity = np.clip(0.5 - radius * outside(int(8 * shape), points), 0, 1)[..., None]
        image += opacity * (brightness(texture, cells) * paint(color, channels) - image)
    return image


@pytest.mark.parametrize("image_shape", [(32, 32, 3), (18, 27, 1)])
def test_images_match_second_implementation(image_shape):
    source = data.load_split("shapes", "test", image_shape=image_shape, split_seed=7)
    count = math.prod(image_shape)
    for index in range(30):
        draws = draws_of(7, 1, index, 50 + math.ceil(count / 8))
        units = units_of(draws)
        noise = draws[50:].view("uint8")[:count].reshape(image_shape) - 127.5
        expected = expected_image(units, image_shape) + 0.2 * units[9, MAIN] * noise
        difference = np.abs(source.read(index)["image"] - np.clip(expected, 0, 255)).max(-1)
        # In float32, a pixel at the edge of a texture's cell may belong to the next cell.
        assert np.sum(difference > 1.01) <= 1, index
    assert set(source.labels[:30]) == set(range(8))


def test_labels_match_draws():
    units = np.array([units_of(draws_of(0, 0, index)) for index in range(12)])

    def check(source, expected):
        np.testing.assert_array_equal(source.labels, expected)
        assert [int(source.read(index)["label"]) for index in range(12)] == expected.tolist()

    for label, (field, layer, classes) in {
        "shape": (7, MAIN, 8),
        "row": (1, MAIN, 4),
        "rotation": (5, MAIN, 8),
        "distractors": (9, BACKGROUND, 4),
        "noise": (9, MAIN, 4),
        "background_texture": (8, BACKGROUND, 4),
    }.items():
        source = data.load_split(f"shapes:{label}", "train[:12]")
        check(source, np.floor(classes * units[:, field, layer]))
    colors = np.floor(8 * units[:, 6, MAIN])
    backgrounds = (colors + 1 + np.floor(7 * units[:, 6, BACKGROUND])) % 8
    both = data.load_split("shapes:background-color", "train[:12]")
    check(both, 8 * backgrounds + colors)
    assert both.class_names[:3] == ("0-0", "0-1", "0-2")
    assert len(both.class_names) == 64


def test_splits_and_seeds_have_different_images():
    def first(split, seed=0, count=3):
        source = data.load_split("shapes", split, split_seed=seed)
        return np.stack([source.read(index)["image"] for index in range(count)])

    images = np.concatenate([first("train"), first("test"), first("tune_val"), first("train", 1)])
    assert len(np.unique(images.reshape(12, -1), axis=0)) == 12
    np.testing.assert_array_equal(first("train[:3]"), first("tune_train"))
    assert data.load_split("shapes", "test", num_examples=50).num_examples == 10_000
    huge = data.load_split("shapes", "train", num_examples=2**61)
    assert huge.num_examples == 2**61
    assert huge.labels is None
    assert (huge.read(2**61 - 1)["image"].numpy() != huge.read(0)["image"].numpy()).any()


def test_shapes_are_read_in_batches():
    config = {
        "name": "shapes:shape",
        "train_split": "train[:200]",
        "test_split": "test[:30]",
        "channels": 2,
    }
    inputs = data.from_config({**config, "image_shape": (8, 12, 2)}, batch_size=16, seed=0)
    images, labels, weights = next(iter(inputs.train_batches(start_step=3)))
    assert images.shape == (16, 8, 12, 2)
    assert labels.shape == (16, 8)
    assert weights.numpy().all()
    assert -1 <= images.numpy().min() < 0 < images.numpy().max() <= 1


@pytest.mark.parametrize(
    ("name", "split", "arguments", "message"),
    [
        ("shapes:hue", "train", {}, "different factors.*Received: label='hue'"),
        ("shapes:shape-shape", "train", {}, "different factors.*Received: label='shape-shape'"),
        ("shapes", "validation", {}, "splits of shapes are train"),
        ("shapes", "train", {"image_shape": (32, 32)}, "`image_shape` must be"),
        ("shapes", "train", {"split_seed": -1}, "`split_seed` must be an int32"),
    ],
)
def test_rejects_invalid_arguments(name, split, arguments, message):
    with pytest.raises(ValueError, match=message):
        data.load_split(name, split, **arguments)
