"""RandAugment as in big_vision: sixteen operations on uint8 images with one or three channels.

Each layer draws one operation and always applies it, at a fixed magnitude. RandAugment's paper
defines magnitudes from 0 to 10; AugReg uses up to 20. With `original=True`, every pixel agrees with
big_vision's pp/archive/autoaugment.py; by default, `contrast` and `solarize` are corrected, and
translations and the cutout, which big_vision specifies in pixels of 224-pixel images, are scaled by
the size of the image.

References: Cubuk et al., "RandAugment"; Steiner et al., "How to train your ViT?" (AugReg), section
    3.3.
"""

import functools
import math

import tensorflow as tf

from keras_vit.data.transforms import truncate

GRAY = 128
SIDE = 224  # the image size, in pixels, for which big_vision chose its distances

# AugReg's augmentation levels: layers and magnitude of RandAugment, and alpha of mixup.
LEVELS = {
    "none": (0, 0, 0.0),
    "light1": (2, 0, 0.0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}


def autocontrast(image):
    """Stretches each channel to [0, 255]; constant channels do not change."""
    values = tf.cast(image, tf.float32)
    # Reduce one axis at a time, so that the first reduction works on whole rows, which is several
    # times faster.
    low, high = [reduce(reduce(values, 0), 0) for reduce in (tf.reduce_min, tf.reduce_max)]
    scale = tf.where(high > low, 255.0 / (high - low), 1.0)
    offset = tf.where(high > low, -low * scale, 0.0)
    return truncate(values * scale + offset)


def equalize(image):
    """Flattens the histogram of each channel, as PIL does; constant channels do not change."""
    height, width = tf.unstack(tf.shape(image)[:2])
    channels = image.shape[-1]
    values = tf.reshape(tf.cast(image, tf.int32), [height, width * channels])
    # Use one histogram and one lookup table for all channels: channel c occupies the 256 bins from
    # 256 * c on.
    shifted = values + tf.tile(256 * tf.range(channels), [width])
    # Use the raw op, because `tf.math.bincount` computes the maximum first.
    counts = tf.raw_ops.DenseBincount(
        input=tf.reshape(shifted, [-1]),
        size=256 * channels,
        weights=tf.zeros([0], tf.int32),
        binary_output=False,
    )
    counts = tf.reshape(counts, [channels, 256])
    order = tf.range(256)
    largest = tf.reduce_max(tf.where(counts > 0, order, -1), axis=1, keepdims=True)  # (C, 1)
    last = tf.reduce_sum(tf.where(order == largest, counts, 0), axis=1, keepdims=True)
    step = (tf.reduce_sum(counts, axis=1, keepdims=True) - last) // 255
    below = tf.cumsum(counts, axis=1, exclusive=True)
    table = (below + step // 2) // tf.maximum(step, 1)
    # The exclusive sum shifts the table by one entry; the first entry must be 0, not step // 2.
    table = tf.where(order == 0, 0, tf.clip_by_value(table, 0, 255))
    table = tf.where(step > 0, table, order)
    table = tf.cast(tf.reshape(table, [-1]), tf.uint8)
    return tf.reshape(tf.gather(table, shifted), tf.shape(image))


def invert(image):
    return 255 - image


def rotate(image, degrees):
    """Rotates about the center, with nearest-neighbor sampling."""
    height, width = tf.unstack(tf.cast(tf.shape(image)[:2] - 1, tf.float32))
    angle = degrees * (math.pi / 180.0)
    cos = tf.cos(angle)
    sin = tf.sin(angle)
    x = (width - (cos * width - sin * height)) / 2.0
    y = (height - (sin * width + cos * height)) / 2.0
    return _transform(image, [cos, -sin, x, sin, cos, y])


def posterize(image, bits):
    """Keeps the `bits` most significant bits of each value; at least one, because TensorFlow shifts
    by at most 7."""
    shift = min(max(8 - bits, 0), 7)
    return tf.bitwise.bitwise_and(image, tf.constant(0xFF >> shift << shift, tf.uint8))


def solarize(image, threshold, original=False):
    """Inverts values of `threshold` or more; `original` reduces the threshold modulo 256, so 256
    inverts everything."""
    threshold = threshold % 256 if original else threshold
    # Compare as Python integers, so that 256 does not wrap to 0.
    if threshold > 255:
        return image
    # Invert by flipping all bits, because `tf.where` takes several times as long on bytes.
    return tf.bitwise.bitwise_xor(
        image, 255 * tf.cast(image >= tf.constant(threshold, tf.uint8), tf.uint8)
    )


def solarize_add(image, addition):
    """Adds `addition` to values below 128; the result is at most 255."""
    # Clip before adding, because bytes would overflow.
    added = tf.minimum(255 - image, tf.constant(min(addition, 255), tf.uint8))
    return image + added * tf.cast(image < 128, tf.uint8)


def color(image, factor):
    """Blends between the image in gray (factor 0) and the image (factor 1); larger factors
    extrapolate."""
    return _blend(_gray(image), image, factor)


def contrast(image, factor, original=False):
    """Blends between the mean gray value (factor 0) and the image (factor 1); larger factors
    extrapolate.

    With `original`, the mean count of the gray histogram, at most 255, replaces the mean gray
    value.
    """
    gray = tf.cast(_gray(image), tf.int32)
    pixels = tf.size(gray)
    # big_vision averages the counts of the histogram instead of the values.
    start = tf.minimum(pixels // 256, 255) if original else tf.reduce_sum(gray) // pixels
    return _blend(start, image, factor)


def brightness(image, factor):
    """Blends between black (factor 0) and the image (factor 1); larger factors extrapolate."""
    return _blend(0.0, image, factor)


def sharpness(image, factor):
    """Blends between a smoothed image (factor 0) and the image (factor 1); pixels at the border do
    not change."""
    kernel = tf.constant([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13.0
    kernel = tf.tile(kernel[:, :, None, None], [1, 1, image.shape[-1], 1])
    smooth = tf.nn.depthwise_conv2d(
        tf.cast(image, tf.float32)[None], kernel, [1, 1, 1, 1], "VALID"
    )[0]
    inner = _blend(truncate(smooth), image[1:-1, 1:-1], factor)
    rows = tf.concat([image[1:-1, :1], inner, image[1:-1, -1:]], 1)
    return tf.concat([image[:1], rows, image[-1:]], 0)


def shear(image, level, axis):
    """Shears horizontally for axis 1, vertically for axis 0."""
    return _transform(image, [1.0, level * axis, 0.0, level * (1 - axis), 1.0, 0.0])


def translate(image, shift, axis):
    """Translates by `shift` pixels, to the left for axis 1 or up for axis 0."""
    return _transform(image, [1.0, 0.0, shift * axis, 0.0, 1.0, shift * (1 - axis)])


def cutout(image, half, y, x):
    """Fills a square with sides of `2 * half` pixels around (y, x), clipped to the image, with
    gray."""
    height, width = tf.unstack(tf.shape(image)[:2])
    rows = tf.range(height) - y
    columns = tf.range(width) - x
    in_rows = (rows >= -half) & (rows < half)
    in_columns = (columns >= -half) & (columns < half)
    inside = in_rows[:, None] & in_columns
    # Use the shape `(H, W * C)` to avoid broadcasting over the channels.
    inside = tf.cast(tf.repeat(inside, image.shape[-1], axis=1), tf.uint8)
    flat = tf.reshape(image, tf.shape(inside))
    return tf.reshape(flat * (1 - inside) + GRAY * inside, tf.shape(image))


def operations(magnitude, original=False):
    """Returns the sixteen operations by name: functions of an image, a sign, and two random numbers
    for the cutout."""
    level = magnitude / 10.0
    factor = 1.8 * level + 0.1

    def pixels(image, axis):
        side = SIDE if original else tf.cast(tf.shape(image)[axis], tf.float32)
        return 100.0 * level * (side / SIDE)

    def cut_out(image, sign, *uniform):
        size = tf.shape(image)[:2]
        side = SIDE if original else tf.reduce_min(size)
        center = tf.cast(uniform * tf.cast(size, tf.float32), tf.int32)
        return cutout(image, int(40 * level) * side // SIDE, *tf.unstack(center))

    return {
        "AutoContrast": lambda image, *_: autocontrast(image),
        "Equalize": lambda image, *_: equalize(image),
        "Invert": lambda image, *_: invert(image),
        "Rotate": lambda image, sign, *_: rotate(image, sign * (30.0 * level)),
        "Posterize": lambda image, *_: posterize(image, int(4 * level)),
        "Solarize": lambda image, *_: solarize(image, int(256 * level), original),
        "Color": lambda image, *_: color(image, factor),
        "Contrast": lambda image, *_: contrast(image, factor, original),
        "Brightness": lambda image, *_: brightness(image, factor),
        "Sharpness": lambda image, *_: sharpness(image, factor),
        "ShearX": lambda image, sign, *_: shear(image, sign * (0.3 * level), 1),
        "ShearY": lambda image, sign, *_: shear(image, sign * (0.3 * level), 0),
        "TranslateX": lambda image, sign, *_: translate(image, sign * pixels(image, 1), 1),
        "TranslateY": lambda image, sign, *_: translate(image, sign * pixels(image, 0), 0),
        "Cutout": cut_out,
        "SolarizeAdd": lambda image, *_: solarize_add(image, int(110 * level)),
    }


def randaugment(image, layers, magnitude, seed, original=False):
    """Applies `layers` random operations in turn to a uint8 image `(H, W, C)` with 1 or 3
    channels."""
    draws = tf.random.stateless_uniform([layers, 4], seed)
    choices = list(operations(magnitude, original).values())
    for layer in range(layers):
        chosen, sign, u, v = tf.unstack(draws[layer])
        sign = tf.where(sign < 0.5, 1.0, -1.0)
        branches = [functools.partial(apply, image, sign, u, v) for apply in choices]
        augmented = tf.switch_case(tf.cast(chosen * len(choices), tf.int32), branches)
        image = tf.ensure_shape(augmented, image.shape)
    return image


def _gray(image):
    return tf.image.rgb_to_grayscale(image) if image.shape[-1] == 3 else image


def _blend(start, image, factor):
    """Interpolates or extrapolates linearly; returns `start` for factor 0 and the image for factor
    1."""
    start = tf.cast(start, tf.float32)
    return truncate(start + factor * (tf.cast(image, tf.float32) - start))


def _transform(image, matrix):
    """Replaces pixel (x, y) by pixel (a x + b y + c, d x + e y + f), or gray outside; `matrix` is
    (a, ..., f)."""
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=tf.stack([*matrix, 0.0, 0.0])[None],
        output_shape=tf.shape(image)[:2],
        fill_value=float(GRAY),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]
