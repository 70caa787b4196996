"""Statistical tests of orders, keys and random draws. Most bounds are five standard deviations from
the mean."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import examples, order, transforms

SEEDS = range(4)
EPOCHS = 3


def epochs_of(num_examples, seed):
    """Returns the example indices of the first `EPOCHS` epochs in training order, int64 `(EPOCHS,
    N)`."""
    positions = tf.range(EPOCHS * num_examples, dtype=tf.int64)
    return order.index_at(positions, num_examples, seed)[1].numpy().reshape(EPOCHS, num_examples)


def correlation(one, other):
    """Returns the correlation of two sequences, in units of its standard deviation if they are
    independent."""
    return np.corrcoef(one, other)[0, 1] * np.sqrt(len(one) - 1)


def class_spread(permutation, batch_size=64, classes=10):
    """Returns the standardized chi-square statistic of the class counts in batches."""
    n = len(permutation)
    labels = np.arange(n) * classes // n  # examples are stored by class
    shares = np.bincount(labels) / n
    batches = labels[permutation][: n // batch_size * batch_size].reshape(-1, batch_size)
    counts = np.stack([(batches == label).sum(1) for label in range(classes)], 1)
    # Drawing without replacement multiplies the variance by `factor`.
    expected = batch_size * shares
    factor = (n - batch_size) / (n - 1)
    mean = len(batches) * (classes - 1)
    degrees = mean - (n % batch_size == 0) * (classes - 1)
    chi_square = ((counts - expected) ** 2 / expected).sum() / factor
    return (chi_square - mean) / np.sqrt(2 * degrees)


@pytest.mark.parametrize("num_examples", [1023, 1024, 1025, 32768, 50_000])
def test_order_looks_random(num_examples):
    orders = np.concatenate([epochs_of(num_examples, seed) for seed in SEEDS])
    stored = np.arange(num_examples)
    for permutation in orders:
        assert abs(correlation(permutation, stored)) < 5
        # On average, one example stays in place and two pairs stay adjacent. Both counts are about
        # Poisson-distributed.
        assert (permutation == stored).sum() <= 1 + 5
        assert (np.abs(np.diff(permutation)) == 1).sum() <= 2 + 5 * np.sqrt(2)
        assert abs(correlation(permutation[1:], permutation[:-1])) < 5
        assert abs(class_spread(permutation)) < 5
    for one, other in itertools.combinations(orders, 2):  # across epochs and seeds
        assert abs(correlation(one, other)) < 5
        assert (one == other).sum() <= 1 + 5


def test_small_epochs_are_shuffled():
    # In 100 random orders of 40 examples, 100 examples stay in place on average. The standard
    # deviation is 10.
    orders = np.concatenate([epochs_of(40, seed) for seed in range(34)])[:100]
    assert abs((orders == np.arange(40)).sum() - 100) < 5 * 10
    # Each example is equally likely to come first.
    counts = np.bincount([permutation[0] for permutation in orders], minlength=40)
    assert ((counts - 2.5) ** 2 / 2.5).sum() < 39 + 5 * np.sqrt(2 * 39)


def draws_of(number):
    """Returns one random value per kind of draw. `number` is an example index or a step."""
    key = tf.stack([tf.constant(0, tf.int64), number])
    window = tf.cast(transforms.inception_window([1000, 1000], key + examples.CROP), tf.float32)
    spot = tf.reshape(tf.range(99, dtype=tf.float32), (9, 11, 1))
    shifted = transforms.random_shift(spot, 4, key + examples.SHIFT)
    return {
        "window": tf.cast(window[0] / tf.maximum(1000.0 - window[2], 1.0), tf.float32),
        "flip": tf.random.stateless_uniform([], key + examples.FLIP),
        "randaugment": tf.random.stateless_uniform([2, 4], key + examples.RANDAUGMENT)[0, 0],
        "shift": shifted[4, 5, 0],
        "share": examples.mixing_weight(1.0, key + examples.MIX),
        "cut": tf.random.stateless_uniform([2], key + examples.CUT)[0],
        "lot": tf.random.stateless_uniform([], key + examples.LOT),
    }


def test_draws_are_uncorrelated_across_examples_and_uses():
    n = 2000
    batches = tf.data.Dataset.range(n).map(draws_of).batch(n)
    draws = {name: values.numpy() for name, values in next(iter(batches)).items()}
    for values in draws.values():
        assert abs(correlation(values[1:], values[:-1])) < 5
        assert abs(correlation(values, np.arange(n))) < 5
    for one, other in itertools.combinations(draws.values(), 2):
        assert abs(correlation(one, other)) < 5
    # With the same key, a random crop and a shift would move an image in the same direction.
    assert examples.CROP != examples.SHIFT
    for name in ("flip", "randaugment", "share", "cut", "lot"):
        assert abs(draws[name].mean() - 0.5) < 5 * np.sqrt(1 / 12 / n), name
