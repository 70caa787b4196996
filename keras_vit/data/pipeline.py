"""From a source to batches, in an order that is a function of the step alone."""

import tensorflow as tf

from keras_vit.data.preprocessing import random_shift, value_range


def train_batches(source, *, batch_size, seed, start_step=0, shift=0):
    """An endless dataset of training batches.

    Everything random depends on (seed, epoch, example) only, so a pipeline that starts at `start_step` gives exactly
    what an uninterrupted one gives from there on. An epoch holds every example once; a batch may span two epochs.

    Args:
        source: a `Source`.
        batch_size: examples in a batch, over all replicas.
        seed: a non-negative int32.
        start_step: the first batch to give.
        shift: largest random shift of an image, in pixels.

    Returns:
        A `tf.data.Dataset` of `(images, labels)`: float32 `(batch_size, H, W, 3)` in [-1, 1], and float32
        `(batch_size, classes)`, one-hot.
    """
    n = source.num_examples
    seed64 = tf.constant(seed, tf.int64)

    def example(position):
        epoch, place = position // n, position % n
        # Reading by a shuffled index instead of a shuffle buffer: any step can be reached at once.
        index = tf.random.experimental.index_shuffle(place, seed=tf.stack([seed64, epoch]), max_index=n - 1)
        raw = source.read(index)
        image = random_shift(raw["image"], shift, seed=tf.stack([seed64, epoch * n + index]))
        return value_range(image, source.max_value), _one_hot(raw["label"], source)

    first = start_step * batch_size
    positions = tf.data.Dataset.range(first, tf.int64.max)
    # Decoding before batching, in parallel and in order; static shapes leave.
    batches = positions.map(example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return batches.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def eval_batches(source, *, batch_size):
    """A dataset that holds every example once, in order.

    Args:
        source: a `Source`.
        batch_size: examples in a batch, over all replicas.

    Returns:
        A `tf.data.Dataset` of `(images, labels, weights)`, the first two as in training, and float32 `(batch_size,)`:
        1, or 0 for what only fills up the last batch.
    """
    n = source.num_examples
    batches = -(-n // batch_size)

    def example(position):
        raw = source.read(tf.minimum(position, n - 1))
        weight = tf.cast(position < n, tf.float32)
        return value_range(raw["image"], source.max_value), _one_hot(raw["label"], source), weight

    positions = tf.data.Dataset.range(batches * batch_size)
    examples = positions.map(example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return examples.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _one_hot(label, source):
    return tf.one_hot(label, len(source.class_names), dtype=tf.float32)
