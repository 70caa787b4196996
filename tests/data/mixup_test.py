"""Tests of the Mixup weights and the CutMix windows."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import examples


def draws_of(alpha, count, **options):
    """Returns the mixing weights of some batches."""
    keys = [tf.constant([1, step], tf.int64) for step in range(count)]
    return np.array([examples.mixing_weight(alpha, key, **options) for key in keys])


@pytest.mark.parametrize("alpha", [0.2, 0.8])
def test_mixing_weights_follow_a_beta_distribution(alpha):
    shares = draws_of(alpha, 500)
    expected = np.random.default_rng(0).beta(alpha, alpha, 100_000)
    for quantile in (0.2, 0.35, 0.5, 0.65, 0.8):
        assert abs((shares < np.quantile(expected, quantile)).mean() - quantile) < 0.07
    folded = draws_of(alpha, 50, favor_first=True)
    np.testing.assert_allclose(folded, np.maximum(shares, 1 - shares)[:50], atol=1e-6)


def test_cutmix_pastes_the_same_window_into_all_images():
    images = tf.zeros([2, 16, 24, 3])
    share = tf.constant(0.75)
    for i in range(20):
        mixed, kept = examples.cutmix(images, images + 1, share, tf.constant([2, i], tf.int64))
        inside = mixed.numpy()[0, :, :, 0]
        rows = inside.any(1).sum()
        columns = inside.any(0).sum()
        assert inside.sum() == rows * columns  # a rectangle
        # 0.25 of the area: half of each side, plus 1 for rounding.
        assert rows <= 9 and columns <= 13
        np.testing.assert_allclose(kept, 1 - inside.mean(), rtol=1e-6)
        np.testing.assert_array_equal(mixed[0], mixed[1])
