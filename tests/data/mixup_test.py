"""Tests of the Mixup weights and the CutMix windows."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import examples

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("alpha", [0.2, 0.8])
def test_mixing_weights_follow_a_beta_distribution(alpha):
    shares = np.array(
        [examples.mixing_weight(alpha, tf.constant([1, i], tf.int64)) for i in range(500)]
    )
    expected = np.random.default_rng(0).beta(alpha, alpha, 100_000)
    for quantile in (0.2, 0.35, 0.5, 0.65, 0.8):
        assert abs((shares < np.quantile(expected, quantile)).mean() - quantile) < 0.07
    folded = np.array(
        [
            examples.mixing_weight(alpha, tf.constant([1, i], tf.int64), favor_first=True)
            for i in range(50)
        ]
    )
    np.testing.assert_allclose(folded, np.maximum(shares, 1 - shares)[:50], atol=1e-6)


def test_cutmix_pastes_the_same_window_into_all_images():
    images = tf.zeros([2, 16, 24, 3])
    partners = tf.ones([2, 16, 24, 3])
    for i in range(20):
        mixed, share = examples.cutmix(
            images, partners, tf.constant(0.75), tf.constant([2, i], tf.int64)
        )
        inside = mixed.numpy()[0, :, :, 0]
        rows = inside.any(1).sum()
        columns = inside.any(0).sum()
        assert inside.sum() == rows * columns  # a rectangle
        # 0.25 of the area: half of each side, plus 1 for rounding.
        assert rows <= 9 and columns <= 13
        np.testing.assert_allclose(share, 1 - inside.mean(), rtol=1e-6)
        np.testing.assert_array_equal(mixed[0], mixed[1])
