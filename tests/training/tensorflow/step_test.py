"""Tests of TensorFlow's training steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers.dropout import current_seeds
from keras_vit.training.tensorflow.gradients import make_replica_gradients

from ...shared import assert_same_arrays
from .. import tiny

CLIP = 1.5
OPTIONS = {"clip_norm": CLIP, "ema_decay": 0.75}
DROPOUT = {"dropout": 0.3, "attention_dropout": 0.2, "stochastic_depth": 0.3}


def _assert_same(ours, theirs, atol=1e-5):
    """Compares the metrics and the states of two results of `tiny.train`."""
    (state, rows, _), (other, other_rows, _) = ours, theirs
    np.testing.assert_allclose(rows, other_rows, rtol=1e-5, atol=1e-6)
    for field, variables in vars(state.variables).items():
        for variable, expected in zip(variables, getattr(other.variables, field), strict=True):
            np.testing.assert_allclose(variable.numpy(), expected.numpy(), atol=atol)


@pytest.fixture(scope="module")
def alone():
    """Trains on one replica."""
    result = tiny.train(options=OPTIONS)
    assert (result[1][:, 2] > CLIP).sum() >= 2, "at least two steps must be clipped"
    return result


@pytest.mark.parametrize(("replicas", "parts"), [(1, 4), (2, 2), (4, 1)])
def test_replicas_and_micro_batches_do_not_change_results(replicas, parts, alone):
    _assert_same(tiny.train(replicas, options={**OPTIONS, "accumulate_steps": parts}), alone)


def test_weights_move_and_averages_follow(alone):
    state, _, _ = alone
    before = tiny.weights_of(tiny.new_state())
    for weight, average in zip(state.model.trainable_variables, state.variables.averages):
        first = before[weight.path]
        moved = np.abs(weight.numpy() - first).max()
        if not weight.path.endswith("key/bias"):  # its gradient is zero in exact arithmetic
            assert moved > 1e-4
            assert 0 < np.abs(average.numpy() - first).max() < moved


def test_outputs_of_a_call(alone):
    _, rows, outputs = alone
    assert rows.shape == (5, 4)
    assert outputs["running"].numpy().tolist() == [True] * 5
    assert outputs["input_wait"].numpy() > 0 and not outputs["stop_requested"].numpy()


def test_steps_per_call_is_bit_exact():
    arguments = {"options": {**OPTIONS, "accumulate_steps": 2}, "dropout": 0.3}
    together = tiny.train(2, **arguments)
    apart = tiny.train(2, steps_per_call=2, **arguments)
    np.testing.assert_array_equal(together[1], apart[1])
    assert_same_arrays(tiny.weights_of(together[0]), tiny.weights_of(apart[0]))


def _recorded(record, steps, accumulate_steps, **model):
    """Computes the gradients of steps on two replicas. All images are equal.

    Returns the value of `record(logits)` for each micro-batch of each step.
    """
    strategy = tiny.strategy_of(2)
    task = tiny.classification(batch_size=8, accumulate_steps=accumulate_steps)
    loss = task.loss
    values = []

    def recording(labels, logits):
        zero = tf.py_function(
            lambda value: values.append(value.numpy()) or 0.0, [record(logits)], tf.float32
        )
        return loss(labels, logits) + tf.ensure_shape(zero, ())

    task.loss = recording
    model = tiny.new_state(2, **model).model
    compute = make_replica_gradients(strategy, model, task, task.config)
    image = np.random.default_rng(0).normal(size=(1, 4, 6, 3))
    images = tf.constant(np.repeat(image, 4, axis=0), tf.float32)
    batch = [images, tf.one_hot([0] * 4, 3), tf.ones(4)]
    gradients = tf.function(lambda step: strategy.run(compute, (step, batch)))
    for step in steps:
        gradients(tf.constant(step))
    return values


def test_dropout_masks_are_unique_and_reproducible():
    logits = _recorded(tf.stop_gradient, (3, 4, 3), 2, num_layers=3, **DROPOUT)
    # A step has four micro-batches, two of each replica, in any order.
    first, other, again = (
        np.array(sorted(map(np.ravel, logits[i : i + 4]), key=tuple)) for i in (0, 4, 8)
    )
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(np.round([*first, *other], 5), axis=0)) == 8


def test_every_draw_has_a_unique_seed():
    """Seeds differ between draws, micro-batches, steps and replicas."""
    draws = 5
    seeds = _recorded(
        lambda logits: tf.stack([current_seeds().next() for _ in range(draws)]),
        steps=range(3),
        accumulate_steps=4,
    )
    seeds = np.concatenate(seeds)
    assert len(np.unique(seeds, axis=0)) == len(seeds) == 3 * 2 * 4 * draws


def test_remat_does_not_change_results_with_dropout():
    arguments = {**DROPOUT, "num_layers": 2, "options": {"accumulate_steps": 2}}
    # Recomputed values differ by rounding errors, so the tolerance is higher.
    result = tiny.train(2, remat=True, **arguments)
    _assert_same(result, tiny.train(2, **arguments), atol=1e-4)


def test_xla_does_not_change_results_without_dropout(alone, xla):
    options = {**OPTIONS, "accumulate_steps": 2, "xla": True}
    _assert_same(tiny.train(2, options=options), alone)


@pytest.mark.parametrize("skip", [False, True])
def test_nonfinite_step_changes_nothing(skip):
    state = tiny.new_state(2, averaged=True)
    state.model.head.bias.assign([np.inf, 0, 0])
    before = tiny.weights_of(state)
    options = {"ema_decay": 0.5, "skip_nonfinite": skip}
    _, rows, outputs = tiny.train(2, state=state, options=options)
    assert_same_arrays(tiny.weights_of(state), before)
    assert state.optimizer.iterations.numpy() == 0
    assert not np.isfinite(rows[:, 0]).any()
    assert outputs["running"].numpy().tolist() == [skip] * 5


def test_float16_lowers_its_loss_scale():
    overflowing_scale = 2.0**18
    state = tiny.new_state(2, scaled=True, policy="mixed_float16")
    state.variables.scaling[0].assign(overflowing_scale)
    _, rows, outputs = tiny.train(2, state=state, steps=12)
    keras.config.set_dtype_policy("float32")
    finite = np.isfinite(rows[:, 2])
    first = finite.argmax()
    assert first > 2 and finite[first:].all()
    assert np.isfinite(rows[:, 0]).all() and outputs["running"].numpy().all()
    scaling = [value.numpy() for value in state.variables.scaling]
    assert scaling == [overflowing_scale / 2**first, 12 - first]
    assert state.optimizer.iterations.numpy() == 12 - first
    # The norm of the unscaled gradients is that of float32.
    _, plain, _ = tiny.train(1, steps=int(first) + 1, rate=0.0)
    np.testing.assert_allclose(rows[first, 2], plain[first, 2], rtol=2e-2)
