"""Draws the images of the dataset "shapes".

Every random value of an image is computed from the example's state, a uint64.
"""

import math

import numpy as np
import tensorflow as tf

from keras_vit.data import order

_LAYERS = 5  # from back to front: the background, three distractors and the shape
BACKGROUND = 0
MAIN = 4
COLORS = 8
_ANGLES = 1024
SHAPES = ("disc", "ring", "half_disc", "crescent", "triangle", "square", "star", "cross")
TEXTURES = ("solid", "stripes", "checks", "dots")
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
    "color": ((1, COLORS), (1, COLORS), (0, COLORS)),
    "shape": ((0, len(SHAPES)),) * 3,
    "texture": ((0, len(TEXTURES)),) * 3,
    # Background: number of distractors; shape: range of the noise, in pixel values.
    "level": ((0, 4), (0, 0), (0, 51)),
}
_FIELDS = tuple(_RANGES)


def uint64(number):
    return tf.constant(number, tf.uint64)


def _uniform(state, numbers):
    """Returns random float32 values in [0, 1). The int64 indices `numbers` broadcast with
    `state`."""
    bits = tf.bitwise.right_shift(order.splitmix64(state, numbers), uint64(40))
    return tf.cast(bits, tf.float32) * 2.0**-24


def field_value(state, layer, field):
    """Returns the random value in [0, 1) of a layer's field."""
    return _uniform(state, _FIELDS.index(field) * _LAYERS + layer)


def drawing(image_shape):
    """Returns a function from the state of an example to its image, uint8 `(H, W, C)`."""
    height, width, channels = image_shape
    # Lowest and highest values: (fields, layers, 2).
    ranges = np.array([[of[0], of[1], of[1], of[1], of[2]] for of in _RANGES.values()], "float32")
    lowest = ranges[..., 0]
    span = ranges[..., 1] - ranges[..., 0]
    y, x = (np.ravel(grid).astype("float32") + 0.5 for grid in np.mgrid[:height, :width])
    sides = _outlines()
    colors = _palette(channels)

    def draw(state):
        random = _uniform(state, tf.range(len(_FIELDS) * _LAYERS, dtype=tf.int64))
        values = lowest + span * tf.reshape(random, lowest.shape)
        column, row, size, period, phase, *_ = tf.unstack(values[:, :, None])  # (layers, 1)
        *_, rotation, color, shape, texture, level = tf.unstack(tf.cast(tf.floor(values), tf.int32))
        # Coordinates in which each layer's shape has radius 1: (layers, H*W).
        radius = size * min(height, width)
        angle = tf.cast(rotation, tf.float32)[:, None] * (2 * math.pi / _ANGLES)
        dx = (x - column * width) / radius
        dy = (y - row * height) / radius
        u = dx * tf.cos(angle) + dy * tf.sin(angle)
        v = dy * tf.cos(angle) - dx * tf.sin(angle)
        opacity = _opacities(u, v, radius, tf.gather(sides, shape[1:]), level[BACKGROUND])
        brightness = _brightness(u, v, period, phase, texture)
        image = _painted(opacity, brightness, color, colors)
        noise = _noise(state, lowest.size, math.prod(image_shape))
        image = tf.reshape(image, (-1,)) + values[_FIELDS.index("level"), MAIN] * noise
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
    cells = tf.stack([u, v])[:, ::MAIN] / period[::MAIN] + 2 * phase[::MAIN]
    odd_u, odd_v = tf.unstack(tf.math.floormod(tf.floor(cells), 2))
    of_u, of_v, of_both = tf.unstack(tf.gather(_SHADES, texture[::MAIN])[:, :, None], axis=1)
    return (1 - (of_u * odd_u + odd_v * (of_v + of_both * odd_u)))[:, :, None]


def _painted(opacity, brightness, color, colors):
    """Returns the image without noise, `(H*W, C)`, painted from the back to the front."""
    background = color[MAIN] + color[BACKGROUND]
    number = tf.concat([background[None], background + color[1:MAIN], color[MAIN:]], 0)
    paint = tf.gather(colors, tf.math.floormod(number, COLORS))  # (layers, C)
    image = brightness[0] * paint[BACKGROUND]
    for layer in range(1, MAIN):
        image += opacity[layer - 1] * (paint[layer] - image)
    image += opacity[-1] * (brightness[1] * paint[MAIN] - image)
    return image


def _noise(state, first, count):
    """Returns `count` values in [-0.5, 0.5], one random byte each, from draw `first` on."""
    numbers = tf.range(first, first - (-count // 8), dtype=tf.int64)
    values = tf.reshape(tf.bitcast(order.splitmix64(state, numbers), tf.uint8), (-1,))[:count]
    return tf.cast(values, tf.float32) / 255 - 0.5


def _palette(channels):
    """Returns the colors, float32 `(8, channels)` in [0, 255]: hues, or levels of gray for one
    channel."""
    steps = np.arange(COLORS)[:, None] / COLORS
    if channels == 1:
        return np.round(255 * (steps + 1 / COLORS)).astype("float32")
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
    pairs = [(unions[name] * 2)[:2] for name in SHAPES]
    return np.array(
        [
            [side for part in pair for side in [*part, *[everywhere] * (4 - len(part))]]
            for pair in pairs
        ],
        "float32",
    )
