"""Tests of the softmax and sigmoid losses, mostly against NumPy in float64."""

import keras
import numpy as np
import pytest

from keras_vit import losses

from .shared import to_numpy


def _labels_and_logits():
    random = np.random.default_rng(0)
    labels = random.random((5, 7))
    logits = 30 * random.standard_normal((5, 7))
    return labels.astype("float32"), logits.astype("float32")


def _loss(name, labels, logits):
    return to_numpy(losses.get(name)(labels, logits))


def test_softmax_loss_matches_numpy():
    labels, logits = _labels_and_logits()
    labels /= labels.sum(-1, keepdims=True)
    exact = logits.astype("float64")
    log_probabilities = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    loss = _loss("softmax", labels, logits)
    assert loss.shape == (5,) and loss.dtype == "float32"
    np.testing.assert_allclose(loss, -(labels * log_probabilities).sum(-1), rtol=1e-6)


def test_sigmoid_loss_matches_numpy():
    labels, logits = _labels_and_logits()
    exact = logits.astype("float64")
    expected = labels * np.log1p(np.exp(-exact)) + (1 - labels) * np.log1p(np.exp(exact))
    np.testing.assert_allclose(_loss("sigmoid", labels, logits), expected.sum(-1), rtol=1e-6)


@pytest.mark.parametrize("name", losses.LOSSES)
@pytest.mark.parametrize("logit", [1e4, -1e4])
def test_losses_of_large_logits_are_finite(logit, name):
    labels = np.eye(3, dtype="float32")
    assert np.isfinite(_loss(name, labels, np.full((3, 3), logit, "float32"))).all()


@pytest.mark.parametrize("name", losses.LOSSES)
def test_losses_are_computed_in_float32(name):
    labels, logits = _labels_and_logits()
    reduced = keras.ops.cast(logits, "bfloat16")
    loss = losses.get(name)(labels, reduced)
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    expected = _loss(name, labels, keras.ops.cast(reduced, "float32"))
    np.testing.assert_array_equal(to_numpy(loss), expected)
