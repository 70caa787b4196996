"""SigLIP 2's NaFlex: images of any size as patch sequences of one length; see
`keras_vit.naflex`."""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf
import tensorflow.experimental.numpy as tnp

from keras_vit import naflex
from keras_vit.data import transforms
from keras_vit.data.inputs.fixed_size import FixedSize
from keras_vit.data.randaugment import LEVELS


class NaFlex(FixedSize):
    """Images of any size, as batches `(B, max_patches, P*P + 2, C)`.

    `image_size` is not used. Images, or their inception crops, are resized to the largest grid of
    whole patches that fits.

    Attributes:
        max_patches: largest number of patches of an image, for a NaFlex model; 0 for other models.
        patch_size: side of a NaFlex patch, in pixels.
    """

    defaults: ClassVar = {"max_patches": 0, "patch_size": 16}
    resizes = ("naflex",)
    has_pixel_grid = False

    def is_chosen(self, options):
        return options.max_patches > 0

    def check(self, options):
        for name, least in {"max_patches": 0, "patch_size": 1}.items():
            value = getattr(options, name)
            if value < least:
                raise ValueError(f"`{name}` must be {least} or more. Received: {name}={value!r}")

    def resolve(self, options):
        zero = ("image_size", "resize_size", "shift", "mixup_alpha", "cutmix_alpha")
        allowed: dict = {
            **dict.fromkeys(zero, (0,)),
            "train_crop": ("auto", "resize", "inception"),
            "eval_crop": ("auto", "resize"),
            "augreg": [level for level, (_, _, mixup) in LEVELS.items() if not mixup],
            "interpolation": ("", "bilinear"),
            # RandAugment, which needs integers, has set `rounding` in resolved options.
            "rounding": ("float", "uint8") if options.randaugment_layers else ("float",),
        }
        wrong = [
            f"{name}={getattr(options, name)!r}"
            for name, values in allowed.items()
            if getattr(options, name) not in values
        ]
        if wrong:
            raise ValueError(
                "With `max_patches` (NaFlex), images (or inception crops) are only resized, with "
                "bilinear interpolation and without rounding. Leave these fields at their "
                f"defaults. Received: {', '.join(wrong)}"
            )
        train_crop = "resize" if options.train_crop == "auto" else options.train_crop
        return dataclasses.replace(options, train_crop=train_crop, eval_crop="resize")

    def shape(self, options, source=None):
        return naflex.batch_shape(options.max_patches, options.patch_size, options.channels)

    def side(self, shape):
        return int(shape[0] ** 0.5) * naflex.patch_size_of(shape)

    def resize(self, options):
        return "naflex"

    def training_image(self, image, seed, options, shape):
        return _resized(image, shape)

    def finish(self, image, shape):
        return _packed(image, shape)

    def evaluation_image(self, image, size, preprocessing):
        return _packed(preprocessing.normalized(_resized(image, size)), size)

    def blank(self, shape):
        image = np.zeros(shape, "float32")
        image[0, -2:] = 1  # one gray patch, because models refuse images without patches
        return image

    def options_for(self, shape, preprocessing):
        fields = ("exif", "bit_depth", "library")
        return {
            "channels": shape[2],
            "max_patches": shape[0],
            "patch_size": naflex.patch_size_of(shape),
            **{name: getattr(preprocessing, name) for name in fields},
        }


def _resized(image, shape):
    """Resizes to the largest grid of whole patches that fits a batch; see `naflex.target_grid`."""
    side = naflex.patch_size_of(shape)
    height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float64))
    grid = tf.stack(naflex.target_grid(height, width, side, shape[0], tnp))
    return transforms.resize(image, side * tf.cast(grid, tf.int32), interpolation="bilinear")


def _packed(image, shape):
    """Packs an image of whole patches into a sequence: float32 `(S, P*P + 2, C)`."""
    side = naflex.patch_size_of(shape)
    channels = image.shape[2]
    rows, columns = tf.unstack(tf.shape(image)[:2] // side)
    pixels = tf.reshape(image, (rows, side, columns, side, channels))
    pixels = tf.reshape(tf.transpose(pixels, (0, 2, 1, 3, 4)), (-1, side * side, channels))
    number = tf.range(rows * columns)
    places = tf.cast(tf.stack([number // columns, number % columns], 1) + 1, tf.float32)
    places = tf.repeat(places[..., None], channels, -1)
    padding = shape[0] - rows * columns
    packed = tf.pad(tf.concat([pixels, places], 1), [[0, padding], [0, 0], [0, 0]])
    return tf.ensure_shape(packed, (*shape[:2], channels))
