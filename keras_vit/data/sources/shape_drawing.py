"""How an image of shapes is drawn, in few TensorFlow operations: each of them costs more than its arithmetic.

What decides an image is a table of draws, a row for each field and a column for each layer of the image: the
background, three distractors and the shape, which is in front of them. What is added up in float32 are multiples of a
power of two that fit into its 24 bits, so that no order of summation and no fused multiplication changes a value.
"""

import math

import numpy as np
import tensorflow as tf

from keras_vit.data.sources import shape_outlines

LAYERS, BACKGROUND, MAIN = 5, 0, 4
COLORS, TEXTURES = 8, ("solid", "stripes", "checks", "dots")
# For each field how many classes its range is divided into, of those that may be labels.
CLASSES = {
    "column": 4,
    "row": 4,
    "size": 8,
    "period": 1,
    "phase": 1,
    "rotation": 8,
    "color": COLORS,
    "shape": len(shape_outlines.NAMES),
    "texture": len(TEXTURES),
    "level": 4,
}
FIELDS = tuple(CLASSES)
DRAWS = len(FIELDS) * LAYERS

_ANGLES = 1024
# What a draw in [0, 1) is spread over, for the background, the distractors and the shape. Places are shares of width
# and height, sizes are radii in shares of the shorter side, periods are in radii; the others are numbers of things.
_RANGES = {
    "column": ((0.0, 1.0), (0.05, 0.95), (0.35, 0.65)),
    "row": ((0.0, 1.0), (0.05, 0.95), (0.35, 0.65)),
    "size": ((0.5, 0.5), (0.05, 0.12), (0.15, 0.35)),
    "period": ((0.2, 0.5), (0.4, 1.0), (0.4, 1.0)),
    "phase": ((0.0, 1.0),) * 3,
    "rotation": ((0, _ANGLES),) * 3,
    # The background has another color than the shape, a distractor another one than the background.
    "color": ((1, COLORS), (1, COLORS), (0, COLORS)),
    "shape": ((0, len(shape_outlines.NAMES)),) * 3,
    "texture": ((0, len(TEXTURES)),) * 3,
    "level": ((0, 4), (0, 0), (0, 51)),  # of the distractors, how many; of the noise, its width in 255ths of white
}
_SHADE = 0.375  # by how much of its brightness a texture darkens a color
# For each texture the weights of an odd column of its cells, of an odd row, and of both.
_TEXTURE_WEIGHTS = _SHADE * np.array([[0, 0, 0], [1, 0, 0], [1, 1, -2], [0, 0, 1]], "float32")
_DISTRACTOR_NUMBERS = np.array([0, 1, 2, -1], "float32")[:, None]  # and the shape, which is always there

# The constants of splitmix64.
STEP, _MIX = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class ShapeDrawing:
    """Draws images of one shape.

    Args:
        image_shape: `(H, W, C)`.
    """

    def __init__(self, image_shape):
        height, width, channels = self.image_shape = image_shape
        columns, rows = np.mgrid[:height, :width][::-1].reshape(2, -1) + 0.5
        self.pixels = np.stack([columns, rows, np.ones_like(rows)]).astype("float32")  # (3, H*W)
        # So coarse that the products and sums of `_coordinates` are exact.
        self.grain = 2.0 ** (8 - math.ceil(math.log2(max(height, width) / min(height, width))))
        ranges = np.array([[back, small, small, small, main] for back, small, main in _RANGES.values()])
        scale = {"column": width, "row": height, "size": min(height, width)}
        ranges = ranges * np.array([scale.get(field, 1) for field in FIELDS])[:, None, None]
        self.lowest = ranges[..., 0].astype("float32")
        self.span = (ranges[..., 1] - ranges[..., 0]).astype("float32")
        angles = 2 * math.pi * np.arange(_ANGLES) / _ANGLES
        # Of u and of v what x and y count, in so few bits that every machine has the same, whatever its sine.
        turns = np.round(4096 * np.stack([np.cos(angles), np.sin(angles)], -1)) / 4096
        self.turns = np.stack([turns, turns[:, ::-1] * [-1, 1]], 1).astype("float32")  # (_ANGLES, 2, 2)
        self.palette = palette(channels)

    def __call__(self, state, draws):
        """An image, uint8 `(H, W, C)`.

        Args:
            state: uint64 scalar tensor, of the example.
            draws: the first `DRAWS` of its `draws_of`, float32 `(DRAWS,)`.
        """
        values = self.lowest + self.span * tf.reshape(draws, self.span.shape)
        column, row, size, period, phase, *_ = tf.unstack(values)
        *_, rotation, color, shape, texture, level = tf.unstack(tf.cast(tf.floor(values), tf.int32))
        uv = self._coordinates(column, row, size, rotation)  # (LAYERS, 2, H*W)
        opacity = self._opacity(uv[1:], shape[1:], size[1:], level[BACKGROUND])
        background, main = self._brightness(uv[::MAIN], period[::MAIN], phase[::MAIN], texture[::MAIN])
        # How much of each layer is seen through those in front of it, from the front.
        weights, remaining = [opacity[3] * main], 1.0 - opacity[3]
        for layer in opacity[2::-1]:
            weights.append(layer * remaining)
            remaining = remaining - weights[-1]
        weights = tf.round(tf.stack([*weights, remaining * background]) * 4096)
        image = tf.matmul(weights, self._colors(color), transpose_a=True) / 4096  # (H*W, C)
        amplitude = values[FIELDS.index("level"), MAIN]
        image = tf.round(tf.reshape(image, (-1,)) + amplitude * (self._noise(state) / 255 - 0.5))
        return tf.reshape(tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8), self.image_shape)

    def _coordinates(self, column, row, size, rotation):
        """Coordinates in which a layer's shape has radius 512, whole numbers of up to 11 bits: `(LAYERS, 2, H*W)`."""
        unit = shape_outlines.RADIUS * self.grain / size
        of_pixel = tf.round(tf.gather(self.turns, rotation) * unit[:, None, None])  # (LAYERS, u and v, x and y)
        offset = -tf.round(tf.reduce_sum(of_pixel * tf.stack([column, row], 1)[:, None], -1, keepdims=True))
        products = tf.reshape(tf.concat([of_pixel, offset], -1) / self.grain, (2 * LAYERS, 3))
        uv = tf.clip_by_value(tf.round(tf.matmul(products, self.pixels)), -2047, 2047)
        return tf.reshape(uv, (LAYERS, 2, self.pixels.shape[1]))

    def _opacity(self, uv, shape, size, distractors):
        """How much of each pixel the distractors and the shape cover, in 64ths: four `(H*W,)` in [0, 1]."""
        sides = tf.unstack(tf.gather(shape_outlines.COEFFICIENTS, shape))
        # Multiples of 2^-10 below 2^13, as are the products with the sides of the shapes and their sums.
        squares = tf.reduce_sum(uv * uv, 1, keepdims=True) / 1024
        terms = tf.unstack(tf.concat([uv, squares, tf.ones_like(squares)], 1))
        outside = []
        for side, term in zip(sides, terms):  # one product of all four takes three times as long
            parts = tf.split(tf.matmul(side, term), 2)
            outside.append(tf.minimum(tf.reduce_max(parts[0], 0), tf.reduce_max(parts[1], 0)))
        sixtyfourths = 32 - tf.stack(outside) * (size * (64 / shape_outlines.RADIUS))[:, None]
        exists = 64 * tf.cast(tf.cast(distractors, tf.float32) > _DISTRACTOR_NUMBERS, tf.float32)
        exists = tf.maximum(exists, np.array([[0], [0], [0], [64]], "float32"))
        return tf.unstack(tf.clip_by_value(tf.round(sixtyfourths), 0, exists) / 64)

    def _brightness(self, uv, period, phase, texture):
        """What the textures of the background and the shape leave of their brightness: `(H*W,)` each."""
        cells = uv * (0.5 / shape_outlines.RADIUS / period)[:, None, None] + phase[:, None, None]
        odd_u, odd_v = tf.unstack(tf.cast(cells - tf.floor(cells) >= 0.5, tf.float32), axis=1)
        of_u, of_v, of_both = tf.split(tf.gather(_TEXTURE_WEIGHTS, texture), 3, axis=1)
        return tf.unstack(1 - (of_u * odd_u + odd_v * (of_v + of_both * odd_u)))

    def _colors(self, color):
        """The colors of the layers from the front, `(LAYERS, C)`: whole numbers of 0 to 255."""
        main, background = color[MAIN:], color[:1] + color[MAIN:]
        colors = tf.concat([main, (color[1:MAIN] + background)[::-1], background], 0)
        return tf.gather(self.palette, tf.math.floormod(colors, COLORS))

    def _noise(self, state):
        """A byte for each value, float32 `(H*W*C,)`."""
        count = math.prod(self.image_shape)
        numbers = _numbers(DRAWS, -(-count // 8))
        noise = tf.reshape(tf.bitcast(splitmix64(state + tf.constant(numbers)), tf.uint8), (-1,))
        return tf.cast(noise if count % 8 == 0 else noise[:count], tf.float32)


def palette(channels):
    """The colors, float32 `(COLORS, channels)`, whole numbers of 0 to 255: hues, or with one channel levels of gray."""
    steps = np.arange(COLORS)[:, None] / COLORS
    if channels == 1:
        return np.round(255 * (steps + 1 / COLORS)).astype("float32")
    hues = np.cos(2 * math.pi * (steps - (np.arange(channels) % 3) / 3))
    return np.round(127.5 * (1 + hues)).astype("float32")


def splitmix64(number):
    """The finalizer of splitmix64, of uint64 of any shape: a tensor, or a numpy array of one dimension or more."""
    is_numpy = isinstance(number, np.ndarray)
    uint64 = np.uint64 if is_numpy else lambda value: tf.constant(value, tf.uint64)
    xor = np.bitwise_xor if is_numpy else tf.bitwise.bitwise_xor
    shifted = np.right_shift if is_numpy else tf.bitwise.right_shift
    for shift, factor in _MIX:
        number = xor(number, shifted(number, uint64(shift))) * uint64(factor)
    return xor(number, shifted(number, uint64(31)))


def draws_of(state, first, count):
    """Some of the draws of an example, float32 `(count,)` in [0, 1), multiples of 2^-24.

    Args:
        state: uint64 scalar tensor, of the example.
        first: the number of the first of them.
        count: how many.
    """
    bits = tf.bitwise.right_shift(splitmix64(state + tf.constant(_numbers(first, count))), tf.constant(40, tf.uint64))
    return tf.cast(bits, tf.float32) * 2.0**-24


def _numbers(first, count):
    """What is added to the state of an example for its draws from number `first` on, uint64 `(count,)`."""
    return np.arange(first + 1, first + count + 1, dtype="uint64") * np.uint64(STEP)
