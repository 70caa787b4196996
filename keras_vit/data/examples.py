"""From one stored example to one that fits into a batch, for training and for evaluation."""

import tensorflow as tf

from keras_vit.data import images, mixup, preprocessing
from keras_vit.data.randaugment import randaugment

# Added to a seed, these keep random numbers of different use apart: the seed is an int32, and these stand above it.
CROP, DRAW, RANDAUGMENT, MIX, CUT = ((number << 32, 0) for number in range(5))


def train_example(example, seed, source, options):
    """A training example, distorted as a pair of numbers decides.

    Args:
        example: `{"image", "label"}`, as a source reads it.
        seed: int64 `(2,)`: the seed of the run, and a number that no other example of any epoch has.
        source: the `Source`.
        options: `Options`, resolved for it.

    Returns:
        `(image, label)`: float32 `(H, W, 3)` in [-1, 1], float32 `(classes,)`.
    """
    size = (options.image_size, options.image_size)
    crop, rounding = options.train_crop, _rounding(options)
    window = (lambda shape: preprocessing.inception_window(shape, seed + CROP)) if crop == "inception" else None
    image, max_value = pixels(example["image"], source, options, window)
    if crop == "resize_small_crop":
        image = preprocessing.resize_small(image, options.resize_size, rounding)
    elif crop == "resize_crop":
        image = preprocessing.resize(image, (options.resize_size,) * 2, rounding)
    elif crop != "none":
        image = preprocessing.resize(image, size, rounding)
    if crop.endswith("_crop"):
        image = preprocessing.random_crop(image, size, seed + CROP)
    if options.flip:
        image = preprocessing.random_flip(image, tf.random.stateless_uniform([], seed + DRAW))
    image = preprocessing.random_shift(image, options.shift, seed + CROP)
    if options.randaugment_layers:
        image = randaugment(
            preprocessing.truncate(tf.cast(image, tf.float32)) if image.dtype != tf.uint8 else image,
            options.randaugment_layers,
            options.randaugment_magnitude,
            seed + RANDAUGMENT,
            options.solarize_wrap,
        )
    return preprocessing.value_range(image, max_value), label_row(example["label"], source)


def eval_example(example, source, options):
    """An evaluation example: `(image, label)` as in training, nothing of it random."""
    size = (options.image_size, options.image_size)
    crop, rounding = options.eval_crop, _rounding(options)
    image, max_value = pixels(example["image"], source, options)
    if crop == "resize_small_crop":
        image = preprocessing.resize_small(image, options.resize_size, rounding)
    elif crop == "resize_crop":
        image = preprocessing.resize(image, (options.resize_size,) * 2, rounding)
    elif crop == "resize":
        image = preprocessing.resize(image, size, rounding)
    if crop.endswith("_crop"):
        image = preprocessing.central_crop(image, size)
    return preprocessing.value_range(image, max_value), label_row(example["label"], source)


def pixels(image, source, options, window=None):
    """An image as uint8 `(H, W, 3)`, decoded if need be, and its value for white."""
    if image.dtype == tf.string:
        image = images.decode(image, options.max_megapixels, window, options.exif)
        if source.max_value == 255:
            return image, 255
        # Of few values a resize would cut off nearly all; the original stretches them first.
        return image * (255 // source.max_value), 255 // source.max_value * source.max_value
    if window is not None:
        y, x, height, width = tf.unstack(window(tf.shape(image)[:2]))
        image = image[y : y + height, x : x + width]
    return image, source.max_value


def label_row(label, source):
    """A label, or a vector of all that count as right, to float32 `(classes,)` of 0 and 1; zeros for no class."""
    rows = tf.one_hot(label, len(source.class_names))
    return rows if rows.shape.rank == 1 else tf.reduce_max(tf.pad(rows, [[0, 1], [0, 0]]), 0)


def weighted(images, labels, smoothing=0.0):
    """A batch with its weights: 1 for a row with a right answer, 0 for one without, which counts for nothing.

    Args:
        images: `(B, H, W, 3)`.
        labels: float32 `(B, classes)` of 0 and 1.
        smoothing: the share of a label that is spread over all classes; what has no label stays without one.

    Returns:
        `(images, labels, weights)`, weights float32 `(B,)`.
    """
    weights = tf.cast(tf.reduce_max(labels, 1) > 0, tf.float32)
    if smoothing:
        labels = (1.0 - smoothing) * labels + smoothing / labels.shape[1] * weights[:, None]
    return images, labels, weights


def mixed_batch(images, labels, weights, own, partners, seed, options):
    """A batch with mixup, or CutMix, or by lot one of them.

    An example whose partner cannot be read stays as it is.

    Args:
        images, labels, weights: what was read, M examples.
        own: where in it the B examples of the batch are.
        partners: where their partners are.
        seed: int64 `(2,)`: the seed of the run and the step.
        options: `Options`, resolved.

    Returns:
        `(images, labels, weights)` of B examples.
    """
    others = tf.where(tf.gather(weights, partners) > 0, partners, own)
    other_images, other_labels = tf.gather(images, others), tf.gather(labels, others)
    if len(own) < len(images):  # other hosts' examples were read as partners
        images, labels = tf.gather(images, own), tf.gather(labels, own)

    def with_mixup():
        share = mixup.mixing_weight(options.mixup_alpha, seed + MIX, options.mixup_form)
        return mixup.mix(images, other_images, share), mixup.mix(labels, other_labels, share)

    def with_cutmix():
        share = mixup.mixing_weight(options.cutmix_alpha, seed + MIX, "reverse")
        mixed, share = mixup.cut(images, other_images, share, seed + CUT)
        return mixed, mixup.mix(labels, other_labels, share)

    weights = tf.gather(weights, own)
    if options.mixup_alpha and options.cutmix_alpha:
        lot = tf.random.stateless_uniform([], seed + DRAW)
        mixed, labels = tf.cond(lot < 0.5, with_mixup, with_cutmix)
    else:
        mixed, labels = with_mixup() if options.mixup_alpha else with_cutmix()
    # What cannot be read stays empty: its weight is 0, and so is its label.
    there = tf.cast(weights > 0, tf.float32)
    return mixed, labels * there[:, None], weights


def _rounding(options):
    return "uint8" if options.randaugment_layers else options.rounding
