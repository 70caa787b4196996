"""Random windows and shifts, resizing and cropping of single images.

With `rounding="float"`, resized images stay float32 as in `vit_jax`. With "uint8", resized uint8
images are truncated to uint8 as in big_vision.
"""

import tensorflow as tf


def inception_window(size, seed):
    """Draws a random window, int32 `(y, x, height, width)`: 5 to 100 % of the area, aspect ratio
    0.75 to 1.33."""
    # The largest aspect ratio is 1.33 instead of 4/3, as in the JAX reference.
    begin, window, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.concat([size, [3]], 0),
        tf.zeros([1, 0, 4]),
        seed,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.05, 1.0),
        min_object_covered=0.0,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], window[:2]], 0)


def crop(image, window):
    """Returns the window `(y, x, height, width)` of an image."""
    y, x, height, width = tf.unstack(window)
    return image[y : y + height, x : x + width]


def mirror(image, condition):
    """Mirrors an image horizontally if `condition`, a scalar Boolean tensor, is true."""
    return tf.cond(condition, lambda: tf.reverse(image, [1]), lambda: image)


def resize(image, size, rounding="float", interpolation=""):
    """Resizes to `size`, ignoring the aspect ratio, with half-pixel centers.

    `interpolation` is "bilinear" or "bicubic", which are antialiased; "area"; or "" for bilinear
    without antialiasing.
    """
    resized = tf.image.resize(
        image, size, method=interpolation or "bilinear", antialias=bool(interpolation)
    )
    if interpolation == "bicubic":  # bicubic interpolation overshoots at edges
        largest = 255 if image.dtype == tf.uint8 else tf.float32.max
        resized = tf.clip_by_value(resized, 0, largest)
    return truncate(resized) if rounding == "uint8" and image.dtype == tf.uint8 else resized


def truncate(image):
    """Clips to [0, 255] and truncates to uint8, as in big_vision."""
    return tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8)


def resize_to_cover(image, size, rounding="float", interpolation="", library="vit_jax"):
    """Resizes to the smallest image of the same aspect ratio that covers `size`; with area
    interpolation if `interpolation` is ""."""
    shape = tf.shape(image)[:2]
    if interpolation:
        # Round the longer side down. timm rounds to the nearest if `size` is not square.
        sides = shape * size[::-1] / shape[::-1]
        is_nearest = library == "torchvision" and size[0] != size[1]
        sides = tf.cast(tf.round(sides) if is_nearest else tf.floor(sides), tf.int32)
        return resize(image, tf.maximum(sides, size), rounding, interpolation)
    shape = tf.cast(shape, tf.float32)
    factor = tf.reduce_max(size / shape)
    return resize(image, tf.cast(tf.round(shape * factor), tf.int32), rounding, "area")


def central_crop(image, size, library="vit_jax"):
    """Crops the center to `size`, `(height, width)`; half an odd margin is rounded as `library`
    does."""
    margins = (tf.shape(image)[:2] - size) / 2
    # `tf.round` rounds half to even.
    margins = tf.round(margins) if library == "torchvision" else tf.floor(margins)
    y, x = tf.unstack(tf.cast(margins, tf.int32))
    return tf.ensure_shape(image[y : y + size[0], x : x + size[1]], (*size, None))


def random_shift(image, max_shift, seed):
    """Shifts an image randomly by up to `max_shift` pixels in each direction; fills with black."""
    if max_shift == 0:
        return image
    padded = tf.pad(image, [[max_shift, max_shift], [max_shift, max_shift], [0, 0]])
    return tf.image.stateless_random_crop(padded, tf.shape(image), seed)
