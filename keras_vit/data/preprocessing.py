"""Pixels in, pixels out: what happens to one image on its way into a batch."""

import tensorflow as tf


def value_range(image, max_value=255):
    """[0, max_value] to float32 in [-1, 1], the range every model here expects."""
    return tf.cast(image, tf.float32) / (max_value / 2) - 1.0


def random_shift(image, pixels, seed):
    """Moves an image by up to `pixels` in each direction; what comes in is black.

    Args:
        image: `(H, W, C)`, any dtype.
        pixels: the largest shift, 0 or more.
        seed: int tensor `(2,)`; the same seed moves by the same amount.

    Returns:
        `(H, W, C)`, the same dtype.
    """
    if pixels == 0:
        return image
    padded = tf.pad(image, [[pixels, pixels], [pixels, pixels], [0, 0]])
    return tf.image.stateless_random_crop(padded, tf.shape(image), seed)
