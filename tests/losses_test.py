"""Tests of the softmax and sigmoid losses, mostly against NumPy in float64."""

import keras
import numpy as np
import pytest

from keras_vit import losses

from .shared import to_numpy


def _labels_and_logits():
    """Returns examples whose logits are so large that their exponentials overflow in float32."""
    random = np.random.default_rng(0)
    labels = random.random((5, 7))
    logits = 100 * random.standard_normal((5, 7))
    return labels.astype("float32"), logits.astype("float32")


def test_softmax_loss_matches_numpy():
    labels, logits = _labels_and_logits()
    exact = logits.astype("float64")
    log_probabilities = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    loss = to_numpy(losses.softmax(labels, logits))
    np.testing.assert_allclose(loss, -(labels * log_probabilities).sum(-1), rtol=1e-6)


def test_sigmoid_loss_matches_numpy():
    labels, logits = _labels_and_logits()
    exact = logits.astype("float64")
    expected = labels * np.log1p(np.exp(-exact)) + (1 - labels) * np.log1p(np.exp(exact))
    loss = to_numpy(losses.sigmoid(labels, logits))
    np.testing.assert_allclose(loss, expected.sum(-1), rtol=1e-6)


@pytest.mark.parametrize("name", losses.LOSSES)
def test_losses_are_computed_in_float32(name):
    loss = losses.get(name)
    labels, logits = _labels_and_logits()
    reduced = keras.ops.cast(logits, "bfloat16")
    result = loss(labels, reduced)
    assert keras.backend.standardize_dtype(result.dtype) == "float32"
    expected = loss(labels, keras.ops.cast(reduced, "float32"))
    np.testing.assert_array_equal(to_numpy(result), to_numpy(expected))
