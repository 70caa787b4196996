"""A guarded update equals the plain update if the condition holds and changes nothing otherwise."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import optimizers
from keras_vit.training.update import TrainState, update

from ..shared import to_numpy

PARAMETERS = {"embedding": "kernel", "encoderblock_0": "kernel", "head": "bias"}


def _optimizer(name):
    """Returns a built optimizer and its variables."""
    options = {"weight_decay": 0.1, "decay_mask": "kernels"} if name == "adamw" else {}
    schedule = optimizers.Schedule("cosine", 0.1, total_steps=10, warmup_steps=2)
    optimizer = optimizers.get(
        name, schedule, momentum_dtype="bfloat16", layer_decay=0.5, **options
    )
    random = np.random.default_rng(0)
    variables = []
    for layer, name in PARAMETERS.items():
        with keras.name_scope(layer):
            variables.append(keras.Variable(random.normal(size=(3, 5)), name=name))
    optimizer.build(variables)
    return optimizer, variables


def _gradients(step):
    random = np.random.default_rng(step + 1)
    return [ops.convert_to_tensor(random.normal(size=(3, 5)), "float32") for _ in PARAMETERS]


def _guarded(optimizer, variables, compiled):
    """Returns `apply(gradients, condition)`, which applies a guarded update."""

    def updated(gradients, weights, state, condition):
        before = TrainState(weights, [], state, [], [])
        means = ops.where(condition, ops.zeros(1), np.nan)
        after, _, _ = update(optimizer, before, gradients, means, [], True)
        return after.weights, after.slots

    if compiled and keras.backend.backend() == "jax":
        import jax

        updated = jax.jit(updated)
    elif compiled:
        import tensorflow as tf

        updated = tf.function(updated, autograph=False)

    def apply(gradients, condition):
        weights, state = (
            [ops.copy(ops.convert_to_tensor(v)) for v in each]
            for each in (variables, optimizer.variables)
        )
        weights, state = updated(gradients, weights, state, ops.convert_to_tensor(condition))
        changed = [*variables, *optimizer.variables]
        for variable, value in zip(changed, [*weights, *state], strict=True):
            variable.assign(value)

    return apply


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_update_is_exact_or_skipped(name, compiled):
    def run(conditions):
        optimizer, variables = _optimizer(name)
        apply = _guarded(optimizer, variables, compiled)
        values = []
        good = 0
        for condition in conditions:
            # A skipped update must ignore NaN gradients.
            gradients = _gradients(good) if condition else [g * np.nan for g in _gradients(0)]
            apply(gradients, condition)
            good += condition
            values.append([to_numpy(v).tobytes() for v in (*variables, *optimizer.variables)])
        assert int(to_numpy(optimizer.iterations)) == good
        return values

    plain = run([True] * 4)
    guarded = run([True, True, False, True, False, False, True])
    assert guarded == [plain[i] for i in (0, 1, 1, 2, 2, 2, 3)]


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_guarded_update_matches_apply(name):
    ours, our_weights = _optimizer(name)
    theirs, their_weights = _optimizer(name)
    apply = _guarded(ours, our_weights, compiled=False)
    for step in range(4):
        apply(_gradients(step), True)
        theirs.apply(_gradients(step))
    pairs = zip([*our_weights, *ours.variables], [*their_weights, *theirs.variables], strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-6, atol=1e-7)
