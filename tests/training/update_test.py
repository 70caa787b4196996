"""Tests of the training update against NumPy, on the current backend."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import optimizers
from keras_vit.training import update as module
from keras_vit.training.update import TrainState, update

WEIGHTS = [np.array([3.0, -1.0], "float32"), np.array([[2.0]], "float32")]
GRADIENTS = [np.array([0.0, 3.0], "float32"), np.array([[4.0]], "float32")]  # the global norm is 5


def _state(optimizer, scaling=()):
    return TrainState(
        weights=list(map(ops.convert_to_tensor, WEIGHTS)),
        statistics=[ops.convert_to_tensor(np.float32(7))],
        slots=[ops.convert_to_tensor(variable) for variable in optimizer.variables],
        averages=list(map(ops.convert_to_tensor, WEIGHTS)),
        scaling=[ops.convert_to_tensor(value) for value in scaling],
    )


def _update(gradients=GRADIENTS, loss=2.0, running=True, scaling=(), **options):
    """Applies one update and returns `(before, after, running, metrics)`."""
    optimizer = optimizers.SGD(optimizers.Schedule("constant", 0.5, total_steps=10))
    optimizer.build([keras.Variable(weight) for weight in WEIGHTS])
    before = _state(optimizer, scaling)
    tensors = [ops.convert_to_tensor(gradient) for gradient in gradients]
    means = ops.convert_to_tensor(np.array([loss, 0.25], "float32"))
    new_statistics = [ops.convert_to_tensor(8.0)]
    after, running, metrics = update(
        optimizer, before, tensors, means, new_statistics, ops.convert_to_tensor(running), **options
    )
    before, after = keras.tree.map_structure(ops.convert_to_numpy, [vars(before), vars(after)])
    return before, after, bool(running), ops.convert_to_numpy(metrics)


def _same(before, after, fields):
    return all(
        np.array_equal(a, b)
        for field in fields
        for a, b in zip(before[field], after[field], strict=True)
    )


STATE = ("weights", "statistics", "slots", "averages")


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
    "bad", [{"loss": np.nan}, {"gradients": [GRADIENTS[0] + np.inf, GRADIENTS[1]]}]
)
@pytest.mark.parametrize("skip", [False, True])
def test_nonfinite_step_changes_nothing(bad, skip):
    before, after, running, _ = _update(**bad, clip_norm=1.0, ema_decay=0.5, skip_nonfinite=skip)
    assert _same(before, after, STATE) and running == skip


def test_update_after_stop_changes_nothing():
    scaling = (np.float32(8), np.int32(1))
    before, after, running, _ = _update(running=False, scaling=scaling, ema_decay=0.5)
    assert _same(before, after, (*STATE, "scaling")) and not running


def test_gradients_are_unscaled_and_loss_scale_adapts(monkeypatch):
    monkeypatch.setattr(module, "LOSS_SCALE_GROWTH_STEPS", 2)
    scaled = [4 * gradient for gradient in GRADIENTS]
    _, after, running, metrics = _update(scaled, scaling=(np.float32(4), np.int32(1)))
    assert metrics[2] == 5.0 and running and after["scaling"] == [8.0, 0]
    overflow = [scaled[0] + np.inf, scaled[1]]
    before, after, running, _ = _update(overflow, scaling=(np.float32(4), np.int32(1)))
    assert _same(before, after, STATE) and running and after["scaling"] == [2.0, 0]
    _, after, running, _ = _update(overflow, scaling=(np.float32(1), np.int32(0)))
    assert not running and after["scaling"] == [1.0, 0]  # the scale is at its minimum


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_nonfinite_loss_keeps_loss_scale(scale):
    scaling = (np.float32(scale), np.int32(1))
    _, after, running, _ = _update(loss=np.nan, scaling=scaling, skip_nonfinite=True)
    assert running and after["scaling"] == [scale, 0]


def test_loss_scale_recovers_from_zero():
    _, after, _, metrics = _update(scaling=(np.float32(0), np.int32(0)), skip_nonfinite=True)
    assert not np.isfinite(metrics[2]) and after["scaling"] == [1.0, 0]
