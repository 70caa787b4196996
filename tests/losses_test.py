import keras
import numpy as np
import pytest

from keras_vit import losses


def _case():
    random = np.random.default_rng(0)
    return random.random((5, 7)).astype("float32"), (30 * random.standard_normal((5, 7))).astype(
        "float32"
    )


def _loss(name, labels, logits):
    return keras.ops.convert_to_numpy(losses.get(name)(labels, logits))


def test_softmax_loss_matches_numpy():
    labels, logits = _case()
    labels /= labels.sum(-1, keepdims=True)
    exact = logits.astype("float64")
    exact = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    loss = _loss("softmax", labels, logits)
    assert loss.shape == (5,) and loss.dtype == "float32"
    np.testing.assert_allclose(loss, -(labels * exact).sum(-1), rtol=1e-6)


def test_sigmoid_loss_matches_numpy():
    labels, logits = _case()
    exact = logits.astype("float64")
    expected = labels * np.log1p(np.exp(-exact)) + (1 - labels) * np.log1p(np.exp(exact))
    np.testing.assert_allclose(_loss("sigmoid", labels, logits), expected.sum(-1), rtol=1e-6)


def test_sigmoid_loss_is_multi_label():
    labels = np.array([[1, 1, 0], [0, 0, 0]], "float32")
    logits = np.array([[20, 20, -20], [-20, -20, -20]], "float32")
    np.testing.assert_allclose(_loss("sigmoid", labels, logits), [0, 0], atol=1e-7)
    assert _loss("sigmoid", labels, -logits).min() > 39


@pytest.mark.parametrize("name", losses.LOSSES)
def test_losses_are_finite_and_computed_in_float32(name):
    labels = np.eye(3, dtype="float32")
    logits = 1e4 * np.ones((3, 3), "float32")
    assert (
        np.isfinite(_loss(name, labels, logits)).all()
        and np.isfinite(_loss(name, labels, -logits)).all()
    )
    low = keras.ops.cast(_case()[1], "bfloat16")
    assert _loss(name, labels[:1], low[:1, :3]) == _loss(
        name, labels[:1], keras.ops.cast(low, "float32")[:1, :3]
    )


def test_softmax_loss_of_zero_labels_is_zero():
    assert _loss("softmax", np.zeros((1, 7), "float32"), _case()[1][:1]) == 0


def test_rejects_unknown_loss():
    with pytest.raises(ValueError, match="one of softmax, sigmoid.*loss='hinge'"):
        losses.get("hinge")
