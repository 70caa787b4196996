"""Depth: a distance for each pixel."""

import io
from typing import ClassVar

import numpy as np
import tensorflow as tf

from keras_vit.data import images
from keras_vit.data.targets.pixels import PixelValues, apply_to_bytes


class Depth(PixelValues):
    """A target is float32 `(H, W)`: the depth of each pixel, or 0 where it is unknown.

    Stored depths are a gray 16-bit PNG file or an .npy file with numbers `(H, W)`. Zeros, NaN and
    infinity are unknown depths.

    Attributes:
        depth_scale: stored value of a depth of 1, such as 1000 for millimeters if depths are in
            meters, or 256 for KITTI.
    """

    defaults: ClassVar = {"depth_scale": 1.0}

    key = "depth"
    source_name = "depth"
    rule = "of the size of its image, and not negative"
    dtype = tf.float32

    @staticmethod
    def check(options):
        if not options.depth_scale > 0:
            raise ValueError(
                f"`depth_scale` must be above 0. Received: depth_scale={options.depth_scale}"
            )

    def values(self, example):
        depth = example["depth"]
        if depth.dtype == tf.string:
            is_png = images.starts_with(depth, images.PNG_SIGNATURE)
            depth = tf.cond(is_png, lambda: _from_png(depth), lambda: _from_npy(depth))
        depth = tf.cast(depth, tf.float32) / self.options.depth_scale
        return tf.where(tf.math.is_finite(depth), depth, 0.0)

    def is_valid(self, values):
        return values >= 0

    def problem_of_values(self, values):
        return f"a minimum of {values.min():g}"

    def summary(self, max_names=10):
        return f"depths, stored as {self.options.depth_scale:g} times the depth"

    def title(self, target):
        known = target[target > 0]
        return f"{known.min():.3g} to {known.max():.3g}" if len(known) else ""


def _from_png(encoded):
    bits = images.integers(encoded, 24, 2, tf.uint8)
    encoded = images.checked(
        encoded,
        tf.reduce_all(bits == [16, 0]),
        "a PNG file with depths must be gray with 16 bits; bits and color type:",
        bits,
    )
    return tf.cast(tf.io.decode_png(encoded, 1, tf.uint16)[..., 0], tf.float32)


def _from_npy(encoded):
    return tf.ensure_shape(apply_to_bytes(_read_npy, encoded, tf.float32), (None, None))


def _read_npy(encoded):
    return np.load(io.BytesIO(encoded), allow_pickle=False).astype("float32")
