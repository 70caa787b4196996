"""Statistical tests of orders, keys and random draws. Most bounds are five standard deviations from
the mean."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import examples, order

SEEDS = range(4)
EPOCHS = 3
OPERATIONS = ("CROP", "FLIP", "RANDAUGMENT", "MIX", "CUT", "SHIFT", "LOT")


def epochs_of(num_examples, seed):
    """Returns the example indices of the first `EPOCHS` epochs in training order, int64 `(EPOCHS,
    N)`."""
    positions = tf.range(EPOCHS * num_examples, dtype=tf.int64)
    return order.index_at(positions, num_examples, seed)[1].numpy().reshape(EPOCHS, num_examples)


def correlation(one, other):
    """Returns the correlation of two sequences, in units of its standard deviation if they are
    independent."""
    return np.corrcoef(one, other)[0, 1] * np.sqrt(len(one) - 1)


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
    """Returns one random number per random operation. `number` is an example index or a step."""
    key = tf.stack([tf.constant(0, tf.int64), number])
    offsets = [getattr(examples, name) for name in OPERATIONS]
    return tf.stack([tf.random.stateless_uniform([], key + offset) for offset in offsets])


def test_draws_are_uncorrelated_across_examples_and_operations():
    n = 2000
    draws = next(iter(tf.data.Dataset.range(n).map(draws_of).batch(n))).numpy().T
    for values in draws:
        assert abs(correlation(values[1:], values[:-1])) < 5
        assert abs(correlation(values, np.arange(n))) < 5
        assert abs(values.mean() - 0.5) < 5 * np.sqrt(1 / 12 / n)
    for one, other in itertools.combinations(draws, 2):
        assert abs(correlation(one, other)) < 5
