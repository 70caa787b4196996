"""Decodes, crops and augments examples, and mixes examples within a batch.

Mixup and CutMix mix example i of a batch of B examples with a partner: example i - 1 ("roll", as in
big_vision) or example B - 1 - i ("reverse", as in the first release of `vit_jax`). Each host also
reads the partners of its examples, so results do not depend on the number of hosts.

References: Zhang et al., "mixup: Beyond Empirical Risk Minimization"; Yun et al., "CutMix".
"""

import dataclasses

import tensorflow as tf

from keras_vit.data import images, transforms
from keras_vit.data.randaugment import randaugment

# Each random operation adds its own offset to a seed, so that operations draw independent numbers.
# The offsets are multiples of 2**32, and seeds are from 0 to 2**31 - 1, so sums of different
# offsets and seeds never coincide. The seed of an example is (seed, epoch * num_examples + index),
# and the seed of a batch is (seed, step). These seeds can be equal, so never use the same offset
# for examples and batches.
CROP, FLIP, RANDAUGMENT, MIX, CUT, SHIFT, LOT = ((number << 32, 0) for number in range(7))


def train_image(example, seed, source, options):
    """Returns the image of a training example: float32 `options.image_shape(source)`."""
    image_shape = options.image_shape(source)
    # Decode the image, or only a random window of it.
    shape = image_shape if options.train_crop == "none" else None
    image, white = decode_pixels(example["image"], source, options, _window(seed, options), shape)
    # Augment and normalize.
    image = _transform_geometry(image, seed, options, image_shape)
    if options.randaugment_layers:
        image = _randaugment(image, white, seed + RANDAUGMENT, options)
    image = options.preprocessing(source, white).normalized(tf.cast(image, tf.float32))
    return options.kind.finish(image, image_shape)


def eval_image(example, source, options):
    """Returns an evaluation image like `train_image`, but without randomness."""
    shape = options.image_shape(source)
    fixed, size = (shape, None) if options.eval_crop == "none" else (None, shape[:2])
    image, white = decode_pixels(example["image"], source, options, shape=fixed)
    return options.kind.evaluation_image(image, size, options.preprocessing(source, white))


def geometry(seed, source, options, image=None):
    """Returns a function that says where the pixels of an image in a batch come from.

    It maps the size `(H, W)` of an image, after its EXIF rotation, to int32 `(height, width, 2)`:
    the row and column of the nearest pixel, or -1 outside the image. `seed` is that of a training
    image, and `image` its stored form; both are None in evaluation. RandAugment's moves are
    unknown.
    """

    def origins(size):
        rows, columns = tf.meshgrid(tf.range(size[0]), tf.range(size[1]), indexing="ij")
        grid = tf.cast(tf.stack([rows, columns, tf.ones_like(rows)], -1), tf.float32)
        shape = (*options.image_shape(source)[:2], 3)
        if seed is None:
            without_scaling = dataclasses.replace(
                options.preprocessing(source), mean=(0.0,) * 3, std=(1.0,) * 3
            )
            kept = None if options.eval_crop == "none" else shape[:2]
            grid = options.kind.evaluation_image(grid, kept, without_scaling)
        else:
            if window := _window(seed, options):
                grid = _crop_to_window(grid, window, image, options)
            grid = _transform_geometry(grid, seed, options, shape)
        return tf.where(grid[..., 2:] > 0.5, tf.cast(tf.round(grid[..., :2]), tf.int32), -1)

    return origins


def _window(seed, options):
    """Returns the function that draws the window of a training image, or None without inception
    crops."""
    if options.train_crop != "inception":
        return None
    return lambda size: transforms.inception_window(size, seed + CROP)


def _crop_to_window(grid, window, image, options):
    """Returns the part of an upright grid in the window of its image, which `images.decode` draws
    before EXIF rotates the image."""
    rotates = options.exif and image.dtype == tf.string
    file = image[0] if image.shape.rank == 1 else image
    grid = images.as_stored(grid, file) if rotates else grid
    grid = transforms.crop(grid, window(tf.shape(grid)[:2]))
    return images.upright(grid, file) if rotates else grid


def _transform_geometry(image, seed, options, shape):
    """Resizes, crops, mirrors and shifts a training image, or its window."""
    image = options.kind.training_image(image, seed + CROP, options, shape)
    if options.flip:
        image = transforms.mirror(image, tf.random.stateless_uniform([], seed + FLIP) > 0.5)
    return transforms.random_shift(image, options.shift, seed + SHIFT)


def decode_pixels(image, source, options, window=None, shape=None):
    """Returns an image, decoded if necessary, as uint8 or float32 `(H, W, C)`, and the value of a
    white pixel."""
    if image.dtype == tf.string:
        image = _decode_files(image, options, window)
    else:
        image = _pixels_of_array(image, options.channels, window)
    if shape is not None:
        message = f"without a crop, images must have {shape[0]}x{shape[1]} pixels, but have:"
        size = tf.shape(image)[:2]
        image = images.checked(image, tf.reduce_all(size == shape[:2]), message, size)
        image.set_shape(shape)
    white = options.white(source)
    if image.dtype != tf.uint8 or white >= 128:
        return image, white
    # Multiply small values by the largest integer that keeps them within 255. Otherwise, rounding
    # resized values to integers would lose most of the precision.
    factor = int(255 // white)
    return image * factor, white * factor


def _decode_files(encoded, options, window):
    """Decodes an image file, a scalar string, or concatenates the channels of several files, a
    string tensor `(P,)`."""
    files = tf.unstack(encoded) if encoded.shape.rank else [encoded]
    decoded = [
        images.decode(
            file,
            options.max_megapixels / len(files),
            window,
            options.exif,
            options.channels // len(files),
            options.bit_depth,
            options.library or "vit_jax",
        )
        for file in files
    ]
    return tf.concat(decoded, -1)


def _pixels_of_array(image, channels, window):
    """Returns pixel values, or a window of them, as uint8 or float32 `(H, W, channels)`."""
    if image.shape[-1] == 1 and channels == 3:
        image = tf.repeat(image, 3, -1)
    image = tf.ensure_shape(image, (None, None, channels))
    if image.dtype.is_floating:
        image = tf.cast(image, tf.float32)
        wrong = tf.math.count_nonzero(~tf.math.is_finite(image))
        image = images.checked(
            image, wrong == 0, "pixels must be finite; number of NaN or infinite values:", wrong
        )
    if window is not None:
        image = transforms.crop(image, window(tf.shape(image)[:2]))
    return image if image.dtype == tf.uint8 else tf.cast(image, tf.float32)


def _randaugment(image, white, seed, options):
    """Applies RandAugment, which expects values in [0, 255]; rescales images with other ranges
    before and after."""
    if white != 255:
        image = tf.cast(image, tf.float32) * (255.0 / white)
    if image.dtype != tf.uint8:
        image = transforms.truncate(image)
    image = randaugment(
        image,
        options.randaugment_layers,
        options.randaugment_magnitude,
        seed,
        options.randaugment_form == "original",
    )
    return image if white == 255 else tf.cast(image, tf.float32) * (white / 255.0)


def mix_batch(images, targets, weights, host_rows, partner_rows, seed, options, kind):
    """Applies mixup or CutMix to a batch; examples that have weight 0, or whose partner has, stay
    unchanged.

    A host also reads the partners of its examples. `host_rows` are the indices of its examples in
    the arrays, and `partner_rows` the indices of their partners.
    """
    is_mixed = (tf.gather(weights, host_rows) > 0) & (tf.gather(weights, partner_rows) > 0)
    partner_rows = tf.where(is_mixed, partner_rows, host_rows)
    partner_images = tf.gather(images, partner_rows)
    partner_targets = tf.gather(targets, partner_rows)
    if len(host_rows) < len(images):  # the batch also contains partners that belong to other hosts
        images = tf.gather(images, host_rows)
        targets = tf.gather(targets, host_rows)

    def with_mixup():
        share = mixing_weight(options.mixup_alpha, seed + MIX, options.mixup_form == "roll")
        return share * images + (1.0 - share) * partner_images, share

    def with_cutmix():
        share = mixing_weight(options.cutmix_alpha, seed + MIX)
        return cutmix(images, partner_images, share, seed + CUT)

    if options.mixup_alpha and options.cutmix_alpha:
        lot = tf.random.stateless_uniform([], seed + LOT)
        mixed, share = tf.cond(lot < 0.5, with_mixup, with_cutmix)
    else:
        mixed, share = with_mixup() if options.mixup_alpha else with_cutmix()
    partner_weights = tf.gather(weights, partner_rows)
    weights = tf.gather(weights, host_rows)
    # The weights differ only with `class_weights`.
    weights += (1.0 - share) * (partner_weights - weights)
    return mixed, kind.mix(targets, partner_targets, share), weights


def mixing_weight(alpha, seed, favor_first=False):
    """Draws the mixing weight of a batch from Beta(alpha, alpha), as a float32 scalar.

    With `favor_first`, the weight is at least 0.5: `max(draw, 1 - draw)`, as in big_vision's mixup.
    """
    # Draw from Beta as a ratio of gamma draws, in float64 because a small alpha makes both draws
    # tiny.
    one, other = tf.unstack(
        tf.random.stateless_gamma([2], seed, alpha=tf.constant(alpha, tf.float64), dtype=tf.float64)
    )
    # Use 1 if both draws underflow to 0. This only happens if alpha is so small that most weights
    # are 0 or 1 anyway.
    share = tf.where(one + other > 0, one / (one + other), 1.0)
    return tf.cast(tf.maximum(share, 1 - share) if favor_first else share, tf.float32)


def cutmix(images, partners, share, seed):
    """Replaces a random window of each image with the same window of its partner; all images share
    one window.

    Returns the mixed images and the fraction of each original image that remains.
    """
    height, width = images.shape[1:3]
    size = tf.constant([height, width], tf.float32)
    y, x = tf.unstack(tf.random.stateless_uniform([2], seed) * size)
    half_height, half_width = tf.unstack(tf.sqrt(1.0 - share) * size / 2)
    rows = tf.range(height, dtype=tf.float32) + 0.5
    columns = tf.range(width, dtype=tf.float32) + 0.5
    inside = (tf.abs(rows - y) < half_height)[:, None] & (tf.abs(columns - x) < half_width)
    mixed = tf.where(inside[None, :, :, None], partners, images)
    return mixed, 1.0 - tf.reduce_mean(tf.cast(inside, tf.float32))
