"""Tests of the training update against NumPy, on the current backend."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import optimizers
from keras_vit.training import update as module
from keras_vit.training.update import TrainState, update

from ..shared import to_numpy

WEIGHTS = [np.array([3.0, -1.0], "float32"), np.array([[2.0]], "float32")]
GRADIENTS = [np.array([0.0, 3.0], "float32"), np.array([[4.0]], "float32")]  # the global norm is 5
OVERFLOW = [GRADIENTS[0] + np.inf, GRADIENTS[1]]


def _update(gradients=GRADIENTS, loss=2.0, accuracy=0.25, running=True, scaling=(), **options):
    """Applies one update and returns `(before, after, running, metrics)`; `scaling` is the loss
    scale and the number of finite steps since it changed."""
    optimizer = optimizers.SGD(optimizers.Schedule("constant", 0.5, total_steps=10))
    optimizer.build([keras.Variable(weight) for weight in WEIGHTS])
    before = {
        "weights": WEIGHTS,
        "statistics": [7.0],
        "slots": [to_numpy(variable) for variable in optimizer.variables],
        "averages": WEIGHTS,
        "scaling": [dtype(value) for dtype, value in zip((np.float32, np.int32), scaling)],
    }
    means = np.array([loss, accuracy], "float32")
    new_statistics = [8.0]
    state, *arguments = keras.tree.map_structure(
        ops.convert_to_tensor, [before, gradients, means, new_statistics, running]
    )
    after, running, metrics = update(optimizer, TrainState(**state), *arguments, **options)
    after = keras.tree.map_structure(to_numpy, vars(after))
    return before, after, bool(running), to_numpy(metrics)


def _assert_same(before, after):
    """Compares all fields of two states except `scaling`."""
    for field in ("weights", "statistics", "slots", "averages"):
        for old, new in zip(before[field], after[field], strict=True):
            np.testing.assert_array_equal(old, new, err_msg=field)


def test_step_clips_gradients_and_updates_averages():
    _, after, running, metrics = _update(clip_norm=2.5, ema_decay=0.75)
    expected = [weight - 0.5 * (gradient / 2) for weight, gradient in zip(WEIGHTS, GRADIENTS)]
    for weight, new, average, old in zip(after["weights"], expected, after["averages"], WEIGHTS):
        np.testing.assert_allclose(weight, new, rtol=1e-6)
        np.testing.assert_allclose(average, 0.75 * old + 0.25 * new, rtol=1e-6)
    assert running and after["statistics"] == [8.0]
    # Loss, accuracy, norm before clipping, learning rate.
    np.testing.assert_allclose(metrics, [2.0, 0.25, 5.0, 0.5])


@pytest.mark.parametrize(
    "bad",
    [{"loss": np.nan}, {"accuracy": np.nan}, {"gradients": OVERFLOW}],
    ids=["loss", "metric", "gradients"],
)
@pytest.mark.parametrize("skip", [False, True])
def test_nonfinite_step_changes_nothing(bad, skip):
    before, after, running, _ = _update(**bad, clip_norm=1.0, ema_decay=0.5, skip_nonfinite=skip)
    _assert_same(before, after)
    assert running == skip


def test_update_after_stop_changes_nothing():
    before, after, running, _ = _update(running=False, scaling=(8, 1), ema_decay=0.5)
    _assert_same(before, after)
    assert after["scaling"] == [8.0, 1] and not running


def test_gradients_are_unscaled_and_loss_scale_grows(monkeypatch):
    monkeypatch.setattr(module, "LOSS_SCALE_GROWTH_STEPS", 2)
    scaled = [4 * gradient for gradient in GRADIENTS]
    _, after, running, metrics = _update(scaled, scaling=(4, 1))
    assert metrics[2] == 5.0 and running and after["scaling"] == [8.0, 0]


@pytest.mark.parametrize(("scale", "expected"), [(4.0, 2.0), (1.0, 1.0)])
def test_overflow_halves_loss_scale_down_to_its_minimum(scale, expected):
    before, after, running, _ = _update(OVERFLOW, scaling=(scale, 1))
    _assert_same(before, after)
    assert after["scaling"] == [expected, 0] and running == (scale > 1)


@pytest.mark.parametrize("name", ["loss", "accuracy"])
@pytest.mark.parametrize("skip", [False, True])
def test_nonfinite_loss_or_metric_keeps_loss_scale(name, skip):
    _, after, running, _ = _update(**{name: np.nan}, scaling=(8.0, 1), skip_nonfinite=skip)
    assert running == skip and after["scaling"] == [8.0, 0]


def test_held_weights_start_like_new_weights():
    """Steps that were skipped are no updates, so held weights may have gradients before they are
    trained."""
    optimizer = optimizers.AdamW(optimizers.Schedule("constant", 0.5, total_steps=10))
    held, other = [keras.Variable(weight) for weight in WEIGHTS]
    optimizer.build([held, other])
    optimizer.start_at(2, [held])
    slots = [ops.convert_to_tensor(variable) for variable in optimizer.variables]
    state = TrainState([*map(ops.convert_to_tensor, WEIGHTS)], [], slots, [], [])
    history = []
    for _ in range(3):
        state, *_ = update(optimizer, state, GRADIENTS, np.zeros(1, "float32"), [], np.array(True))
        history.append(to_numpy(state.weights[0]))
    np.testing.assert_array_equal(history[:2], [WEIGHTS[0], WEIGHTS[0]])
    # The first update of AdamW is the learning rate times the sign of the gradient.
    np.testing.assert_allclose(history[2], WEIGHTS[0] - 0.5 * np.sign(GRADIENTS[0]), rtol=1e-5)
