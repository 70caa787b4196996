"""Generated images of colored shapes. Any factor, such as the color or the size of the shape, can
be the label.

An image depends only on its shape `(H, W, C)`, the seed, the split and the index. Images are not
stored.
"""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit import data
from keras_vit.data import order
from keras_vit.data.sources.source import Source, parse_split

_LAYERS = 5  # from back to front: the background, three distractors and the shape
_BACKGROUND = 0
_MAIN = 4
_COLORS = 8
_ANGLES = 1024
_SHAPES = ("disc", "ring", "half_disc", "crescent", "triangle", "square", "star", "cross")
_TEXTURES = ("solid", "stripes", "checks", "dots")
# A texture is a grid of square cells, and each row of this array describes a texture. The first
# number is the fraction of the brightness that is removed from cells in odd columns, and the second
# number is the fraction for odd rows. For cells whose column and row are odd, the fraction is the
# sum of all three numbers.
_SHADES = 0.375 * np.array([[0, 0, 0], [1, 0, 0], [1, 1, -2], [0, 0, 1]], "float32")
# Ranges of random values for the background, the distractors and the shape. Columns and rows are
# fractions of the image's width and height. Sizes are radii as fractions of the shorter side.
# Periods are the sides of a texture's cells as multiples of the radius, and phases are multiples of
# two cells. Rotations are multiples of 360 / 1024 degrees.
_RANGES = {
    "column": ((0.0, 1.0), (0.05, 0.95), (0.35, 0.65)),
    "row": ((0.0, 1.0), (0.05, 0.95), (0.35, 0.65)),
    "size": ((0.5, 0.5), (0.05, 0.12), (0.15, 0.35)),
    "period": ((0.2, 0.5), (0.4, 1.0), (0.4, 1.0)),
    "phase": ((0.0, 1.0),) * 3,
    "rotation": ((0, _ANGLES),) * 3,
    # The background's color is the shape's color plus the background's value. A distractor's color
    # is the background's color plus the distractor's value. Sums are modulo the number of colors.
    "color": ((1, _COLORS), (1, _COLORS), (0, _COLORS)),
    "shape": ((0, len(_SHAPES)),) * 3,
    "texture": ((0, len(_TEXTURES)),) * 3,
    # Background: number of distractors; shape: range of the noise, in pixel values.
    "level": ((0, 4), (0, 0), (0, 51)),
}
_FIELDS = tuple(_RANGES)
# The factors that can be labels: their layer, field and number of classes.
_FACTORS = {
    "shape": (_MAIN, "shape", 8),
    "column": (_MAIN, "column", 4),
    "row": (_MAIN, "row", 4),
    "size": (_MAIN, "size", 8),
    "rotation": (_MAIN, "rotation", 8),
    "color": (_MAIN, "color", _COLORS),
    "texture": (_MAIN, "texture", 4),
    "background": (_BACKGROUND, "color", _COLORS),
    "background_texture": (_BACKGROUND, "texture", 4),
    "distractors": (_BACKGROUND, "level", 4),
    "noise": (_MAIN, "level", 4),
}
FACTORS = {name: classes for name, (_, _, classes) in _FACTORS.items()}
_WORDS = {"shape": _SHAPES, "texture": _TEXTURES, "background_texture": _TEXTURES}
_TEST_EXAMPLES = 10_000
# Each number selects a random stream.
_STREAMS = {"train": 0, "tune_train": 0, "test": 1, "tune_val": 2}
_KNOWN_LABELS = 2**20  # up to this many labels are computed in advance


def shapes(
    split: str = "train",
    label: str = "",
    *,
    num_examples: int = 0,
    image_shape: Sequence[int] = (),
    split_seed: int = 0,
) -> Source:
    """Returns a source of generated images of shapes.

    Importing this module registers the dataset "shapes". Smaller training sets are prefixes of
    larger ones.

    Factors, with their number of classes:

        shape (8)               disc, ring, half disc, crescent, triangle, square, star, cross
        column (4), row (4)     center of the shape, 0.35 to 0.65 of the width and height
        size (8)                radius, 0.15 to 0.35 of the shorter side
        rotation (8)            0 to 360 degrees, unseen for discs and rings of the texture "solid"
        color (8), texture (4)  color and pattern of the shape
        background (8)          color of the background
        background_texture (4)  pattern of the background
        distractors (4)         number of small shapes, 0 to 3, which the shape may cover
        noise (4)               amplitude of uniform noise, up to 10 % of the intensity range

    Factors are uniformly distributed and independent, but the background never has the color of the
    shape. The classes of a continuous factor are equal parts of its range.

    Args:
        split: "train", "test", "tune_train" (the same as "train") or "tune_val"; "train[:1000]"
            selects the first 1,000 images.
        label: a factor; or several different factors joined by "-", such as "shape-color", for one
            class per combination of their values; "" for the shape.
        num_examples: size of the training split; 0 for 1,000,000. "test" and "tune_val" have 10,000
            images.
        image_shape: `(H, W, C)`; () for (32, 32, 3). With one channel, colors are gray levels; with
            more than three, the channels repeat.
        split_seed: a non-negative int32 that selects the images.

    Returns:
        A `Source` of uint8 images. Its `labels` are None for splits of more than 2^20 examples.

    Raises:
        ValueError: the split, a factor, a number or the image shape is invalid.
    """
    names = (label or "shape").split("-")
    image_shape = tuple(image_shape) or (32, 32, 3)
    _check(label, names, num_examples, image_shape, split_seed)
    train = num_examples or 1_000_000
    sizes = {
        "train": train,
        "tune_train": train,
        "test": _TEST_EXAMPLES,
        "tune_val": _TEST_EXAMPLES,
    }
    name, count = parse_split("shapes", split, sizes)
    key = int(order.splitmix64(order.splitmix64(_uint64(split_seed), 0), _STREAMS[name]))
    draw = _drawing(image_shape)

    def read(index):
        state = order.splitmix64(_uint64(key), index)
        return {"image": draw(state), "label": _label(names, state)}

    states = order.splitmix64(_uint64(key), tf.range(min(count, _KNOWN_LABELS), dtype=tf.int64))
    return Source(
        read,
        count,
        _class_names(names),
        labels=_label(names, states).numpy() if count <= _KNOWN_LABELS else None,
        name_of=f"shapes {split} example {{}}".format,
        # Flips change the position and rotation of a shape, and crops change its position and size.
        options={"train_crop": "none", "eval_crop": "none", "flip": "off"},
    )


data.SOURCES["shapes"] = shapes


def _check(label, names, num_examples, image_shape, split_seed):
    """Raises a `ValueError` if an argument of `shapes` is invalid; `names` are the factors in
    `label`."""
    if not set(names) <= set(FACTORS) or len(set(names)) < len(names):
        raise ValueError(
            "`label` must be one or more different factors, joined by '-'. The factors are "
            f"{', '.join(FACTORS)}. Received: label={label!r}"
        )
    if len(image_shape) != 3 or not all(isinstance(side, int) and side > 0 for side in image_shape):
        raise ValueError(
            "`image_shape` must be (height, width, channels), positive integers. Received: "
            f"image_shape={image_shape}"
        )
    if not 0 <= split_seed < 2**31:
        raise ValueError(
            f"`split_seed` must be an int32, 0 or more. Received: split_seed={split_seed}"
        )
    if not 0 <= num_examples < 2**62:
        raise ValueError(
            f"`num_examples` must be in [0, 2^62). Received: num_examples={num_examples}"
        )


def _class_names(names):
    """Returns a name for each combination of the factors in `names`, such as "disc-3"."""
    combinations = [""]
    for name in names:
        words = _WORDS.get(name, tuple(map(str, range(FACTORS[name]))))
        combinations = [f"{start}-{word}".lstrip("-") for start in combinations for word in words]
    return tuple(combinations)


def _uint64(number):
    return tf.constant(number, tf.uint64)


def _draws(state, numbers):
    """Returns random float32 values in [0, 1). The int64 indices `numbers` broadcast with
    `state`."""
    bits = tf.bitwise.right_shift(order.splitmix64(state, numbers), _uint64(40))
    return tf.cast(bits, tf.float32) * 2.0**-24


def _label(names, state):
    """Returns the int64 class of each state. A class is a combination of the factors in `names`."""

    def draw(layer, field):
        return _draws(state, _FIELDS.index(field) * _LAYERS + layer)

    result = 0.0
    for name in names:
        layer, field, classes = _FACTORS[name]
        value = tf.floor(draw(layer, field) * classes)
        if name == "background":  # any color but the shape's
            other = tf.floor(draw(layer, field) * (classes - 1)) + 1
            value = tf.math.floormod(tf.floor(draw(_MAIN, field) * classes) + other, classes)
        result = result * classes + value
    return tf.cast(result, tf.int64)


def _drawing(image_shape):
    """Returns a function from the state of an example to its image, uint8 `(H, W, C)`."""
    height, width, channels = image_shape
    # (fields, layers, 2)
    ranges = np.array([[of[0], of[1], of[1], of[1], of[2]] for of in _RANGES.values()], "float32")
    lowest = ranges[..., 0]
    span = ranges[..., 1] - ranges[..., 0]
    y, x = (np.ravel(grid).astype("float32") + 0.5 for grid in np.mgrid[:height, :width])
    sides = _outlines()
    colors = _palette(channels)

    def draw(state):
        draws = _draws(state, tf.range(len(_FIELDS) * _LAYERS, dtype=tf.int64))
        values = lowest + span * tf.reshape(draws, lowest.shape)
        column, row, size, period, phase, *_ = tf.unstack(values[:, :, None])  # (layers, 1)
        *_, rotation, color, shape, texture, level = tf.unstack(tf.cast(tf.floor(values), tf.int32))
        # Coordinates in which each layer's shape has radius 1: (layers, H*W).
        radius = size * min(height, width)
        angle = tf.cast(rotation, tf.float32)[:, None] * (2 * math.pi / _ANGLES)
        dx = (x - column * width) / radius
        dy = (y - row * height) / radius
        u = dx * tf.cos(angle) + dy * tf.sin(angle)
        v = dy * tf.cos(angle) - dx * tf.sin(angle)
        opacity = _opacities(u, v, radius, tf.gather(sides, shape[1:]), level[_BACKGROUND])
        brightness = _brightness(u, v, period, phase, texture)
        image = _painted(opacity, brightness, color, colors)
        noise = _noise(state, lowest.size, math.prod(image_shape))
        image = tf.reshape(image, (-1,)) + values[_FIELDS.index("level"), _MAIN] * noise
        image = tf.clip_by_value(tf.round(image), 0, 255)
        return tf.reshape(tf.cast(image, tf.uint8), image_shape)

    return draw


def _opacities(u, v, radius, sides, distractors):
    """Returns the fraction of each pixel that the distractors and the shape cover, a list of
    `(H*W, 1)`; 0 for absent distractors.

    Edges are one or two pixels wide.
    """
    terms = tf.stack([u, v, u * u + v * v, tf.ones_like(u)], 1)[1:]
    outside = tf.reshape(tf.matmul(sides, terms), (_LAYERS - 1, 2, 4, -1))
    opacity = tf.clip_by_value(0.5 - radius[1:] * tf.reduce_min(tf.reduce_max(outside, 2), 1), 0, 1)
    exists = tf.cast(tf.cast(distractors, tf.float32) >= [1.0, 2.0, 3.0, 0.0], tf.float32)
    return tf.unstack((opacity * exists[:, None])[:, :, None])


def _brightness(u, v, period, phase, texture):
    """Returns the brightness of the background's and the shape's textures, `(2, H*W, 1)`."""
    cells = tf.stack([u, v])[:, ::_MAIN] / period[::_MAIN] + 2 * phase[::_MAIN]
    odd_u, odd_v = tf.unstack(tf.math.floormod(tf.floor(cells), 2))
    of_u, of_v, of_both = tf.unstack(tf.gather(_SHADES, texture[::_MAIN])[:, :, None], axis=1)
    return (1 - (of_u * odd_u + odd_v * (of_v + of_both * odd_u)))[:, :, None]


def _painted(opacity, brightness, color, colors):
    """Returns the image without noise, `(H*W, C)`, painted from the back to the front."""
    background = color[_MAIN] + color[_BACKGROUND]
    number = tf.concat([background[None], background + color[1:_MAIN], color[_MAIN:]], 0)
    paint = tf.gather(colors, tf.math.floormod(number, _COLORS))  # (layers, C)
    image = brightness[0] * paint[_BACKGROUND]
    for layer in range(1, _MAIN):
        image += opacity[layer - 1] * (paint[layer] - image)
    image += opacity[-1] * (brightness[1] * paint[_MAIN] - image)
    return image


def _noise(state, first, count):
    """Returns `count` values in [-0.5, 0.5], one random byte each, from draw `first` on."""
    numbers = tf.range(first, first - (-count // 8), dtype=tf.int64)
    values = tf.reshape(tf.bitcast(order.splitmix64(state, numbers), tf.uint8), (-1,))[:count]
    return tf.cast(values, tf.float32) / 255 - 0.5


def _palette(channels):
    """Returns the colors, float32 `(8, channels)` in [0, 255]: hues, or levels of gray for one
    channel."""
    steps = np.arange(_COLORS)[:, None] / _COLORS
    if channels == 1:
        return np.round(255 * (steps + 1 / _COLORS)).astype("float32")
    hues = np.cos(2 * math.pi * (steps - (np.arange(channels) % 3) / 3))
    return np.round(127.5 * (1 + hues)).astype("float32")


def _outlines():
    """Returns the shapes, float32 `(8, 2 * 4, 4)`: each is a union of two intersections of four
    parts.

    A part is a half plane, a disc or the outside of a disc, described by (a, b, q, c). The value
    a*u + b*v + q*(u^2 + v^2) + c is negative in the part and positive elsewhere. For a half plane,
    the absolute value is the distance from the edge. For a disc, near the edge, it is about this
    distance multiplied by the radius.
    """

    def disc(radius, u=0.0, sign=1):
        return tuple(sign * part for part in (-u, 0.0, 0.5, (u * u - radius**2) / 2))

    def planes(first_degrees, *distances):
        angles = [
            math.radians(first_degrees + 360 * i / len(distances)) for i in range(len(distances))
        ]
        return [
            (math.cos(angle), math.sin(angle), 0.0, -distance)
            for angle, distance in zip(angles, distances)
        ]

    unions = {
        "disc": [[disc(1.0)]],
        "ring": [[disc(1.0), disc(0.5, sign=-1)]],
        "half_disc": [[disc(1.0), (1.0, 0.0, 0.0, 0.0)]],
        "crescent": [[disc(1.0), disc(0.75, 0.5, -1)]],
        "triangle": [planes(60, 0.5, 0.5, 0.5)],
        "square": [planes(0, 0.6875, 0.6875, 0.6875, 0.6875)],
        "star": [planes(60, 0.5, 0.5, 0.5), planes(0, 0.5, 0.5, 0.5)],
        "cross": [
            planes(0, 0.9375, 0.3125, 0.9375, 0.3125),
            planes(0, 0.3125, 0.9375, 0.3125, 0.9375),
        ],
    }
    everywhere = (0.0, 0.0, 0.0, -9.0)
    pairs = [(unions[name] * 2)[:2] for name in _SHAPES]
    return np.array(
        [
            [side for part in pair for side in [*part, *[everywhere] * (4 - len(part))]]
            for pair in pairs
        ],
        "float32",
    )
