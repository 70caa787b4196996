"""Tests of the generated shapes. A second implementation, which computes pixel by pixel, provides
expected images."""

import math

import drawn_shapes  # noqa: F401 (registers the dataset)
import numpy as np
import pytest

from keras_vit import data

FIELDS = [
    "column",
    "row",
    "size",
    "period",
    "phase",
    "rotation",
    "color",
    "shape",
    "texture",
    "level",
]


def finalized(number):
    """Applies the finalizer of splitmix64."""
    number &= 2**64 - 1
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        number = (number ^ number >> shift) * factor & 2**64 - 1
    return number ^ number >> 31


def draws_of(seed, split, index):
    """Returns the random draws of one image, as a function that maps the number of a draw to 64
    bits."""
    step = 0x9E3779B97F4A7C15
    key = finalized(finalized(seed + step) + (split + 1) * step)
    state = finalized(key + (index + 1) * step)
    return lambda number: finalized(state + (number + 1) * step)


def inside(name, x, y):
    """Returns a number that is negative if a point is inside a shape of radius 1, and positive
    outside.

    Near a straight edge, the absolute value is the distance from the edge. For a circle of radius
    R, the value is (r^2 - R^2) / 2 at distance r from the center.
    """

    def circle(radius, center=0.0):
        return ((x - center) ** 2 + y**2 - radius**2) / 2

    def planes(first, *distances):
        angles = [math.radians(first + 360 * i / len(distances)) for i in range(len(distances))]
        return max(x * math.cos(a) + y * math.sin(a) - d for a, d in zip(angles, distances))

    cross = min(
        planes(0, 15 / 16, 5 / 16, 15 / 16, 5 / 16), planes(0, 5 / 16, 15 / 16, 5 / 16, 15 / 16)
    )
    return {
        "disc": circle(1),
        "ring": max(circle(1), -circle(0.5)),
        "half_disc": max(circle(1), x),
        "crescent": max(circle(1), -circle(0.75, 0.5)),
        "triangle": planes(60, 0.5, 0.5, 0.5),
        "square": planes(0, *4 * [11 / 16]),
        "star": min(planes(60, 0.5, 0.5, 0.5), planes(0, 0.5, 0.5, 0.5)),
        "cross": cross,
    }[name]


def between(low, high, share):
    return low + (high - low) * share


def expected_image(seed, split, index, image_shape):
    """Returns `(image, near_edge, unit, bits)`.

    `image` `(H, W, C)` has no noise. `near_edge` `(H, W)` is True for pixels near edges of shapes
    and textures. `unit[field][layer]` is a draw in [0, 1). `bits(number)` returns the 64 bits of a
    draw.
    """
    height, width, channels = image_shape
    bits = draws_of(seed, split, index)
    unit = {
        name: [(bits(5 * i + layer) >> 40) / 2**24 for layer in range(5)]
        for i, name in enumerate(FIELDS)
    }
    shapes = ["disc", "ring", "half_disc", "crescent", "triangle", "square", "star", "cross"]
    main = int(8 * unit["color"][4])
    background = (main + 1 + int(7 * unit["color"][0])) % 8
    layers = []
    for layer in range(5):
        color = background
        places = (0, 1)
        sizes = (0.5, 0.5)
        if 0 < layer < 4:  # a distractor
            color = (background + 1 + int(7 * unit["color"][layer])) % 8
            places = (0.05, 0.95)
            sizes = (0.05, 0.12)
        elif layer == 4:  # the main shape
            color = main
            places = (0.35, 0.65)
            sizes = (0.15, 0.35)
        column, row = (between(*places, unit[name][layer]) for name in ("column", "row"))
        radius = between(*sizes, unit["size"][layer]) * min(height, width)
        angle = 2 * math.pi * int(1024 * unit["rotation"][layer]) / 1024
        layers.append((column * width, row * height, radius, angle, color))
    image = np.zeros(image_shape)
    near_edge = np.zeros((height, width), bool)
    for pixel_row, pixel_column in np.ndindex(height, width):
        for layer, (column, row, radius, angle, color) in enumerate(layers):
            if 0 < layer < 4 and layer > int(4 * unit["level"][0]):
                continue
            dx = pixel_column + 0.5 - column
            dy = pixel_row + 0.5 - row
            x = (dx * math.cos(angle) + dy * math.sin(angle)) / radius
            y = (dy * math.cos(angle) - dx * math.sin(angle)) / radius
            outside = inside(shapes[int(8 * unit["shape"][layer])], x, y) * radius if layer else -9
            shade = 0
            if layer in (0, 4):
                period = between(*((0.4, 1.0) if layer else (0.2, 0.5)), unit["period"][layer])
                # A phase of 1 shifts the texture by two cells.
                cells = [part / period + 2 * unit["phase"][layer] for part in (x, y)]
                odd_x, odd_y = (math.floor(cell) % 2 for cell in cells)
                texture = int(4 * unit["texture"][layer])
                shade = [0, odd_x, odd_x ^ odd_y, odd_x & odd_y][texture]
                near_edge[pixel_row, pixel_column] |= texture and any(
                    abs(cell - round(cell)) * radius * period < 0.05 for cell in cells
                )
            near_edge[pixel_row, pixel_column] |= abs(outside) < 0.6
            if outside < 0:
                hue = [
                    127.5 * (1 + math.cos(2 * math.pi * (color / 8 - (c % 3) / 3)))
                    for c in range(channels)
                ]
                hue = hue if channels > 1 else [255 * (color + 1) / 8]
                image[pixel_row, pixel_column] = np.multiply(hue, 1 - 0.375 * shade)
    return image, near_edge, unit, bits


@pytest.mark.parametrize("image_shape", [(32, 32, 3), (18, 27, 1)])
def test_images_match_second_implementation(image_shape):
    """Compares individual pixels only away from edges, because the second implementation has no
    antialiasing."""
    source = data.load_split("shapes", "test", image_shape=image_shape, split_seed=7)
    far = 0
    for index in range(7):
        image, near_edge, unit, bits = expected_image(7, 1, index, image_shape)
        count = math.prod(image_shape)
        noise = np.array([bits(50 + i) for i in range(math.ceil(count / 8))], "uint64")
        noise = noise.view("uint8")[:count].reshape(image_shape)
        noise = 0.2 * unit["level"][4] * (noise - 127.5)
        expected = np.clip(image + noise, 0, 255)
        actual = source.read(index)["image"].numpy().astype(float)
        assert np.abs(actual - expected)[~near_edge].max() <= 1.01, index
        # Antialiasing blends colors only near edges, so the mean error over all pixels is small.
        assert np.mean(np.abs(actual - expected)) < 12
        far += np.mean(~near_edge) / 7
    assert far > 0.4


def test_labels_match_draws():
    bits = [draws_of(0, 0, index) for index in range(12)]
    for label, (field, layer, classes) in {
        "shape": (7, 4, 8),
        "row": (1, 4, 4),
        "rotation": (5, 4, 8),
        "distractors": (9, 0, 4),
        "noise": (9, 4, 4),
        "background_texture": (8, 0, 4),
    }.items():
        source = data.load_split(f"shapes:{label}", "train[:12]")
        expected = [classes * (draw(5 * field + layer) >> 40) >> 24 for draw in bits]
        assert source.labels.tolist() == expected
        assert [int(source.read(index)["label"]) for index in range(12)] == expected
    both = data.load_split("shapes:background-color", "train[:12]")
    colors = np.array([8 * (draw(34) >> 40) >> 24 for draw in bits])
    np.testing.assert_array_equal(both.labels % 8, colors)
    assert not (both.labels // 8 == colors).any()
    assert both.class_names[:3] == ("0-0", "0-1", "0-2")
    assert len(both.class_names) == 64
    assert [int(both.read(index)["label"]) for index in range(12)] == both.labels.tolist()


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
