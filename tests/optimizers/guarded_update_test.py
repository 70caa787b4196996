"""Tests that `training.update` changes all variables like Keras' `apply`, or none of them."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import optimizers
from keras_vit.training.update import TrainState, update

from ..shared import to_numpy

# Layers and their parameters. Kernels decay, and each layer has its own learning rate.
PARAMETERS = {"embedding": "kernel", "encoderblock_0": "kernel", "head": "bias"}
SHAPE = (3, 5)


def _optimizer(name):
    """Returns a built optimizer and all its variables, beginning with the parameters."""
    optimizer = optimizers.get(
        name,
        optimizers.Schedule("cosine", 0.1, total_steps=10, warmup_steps=2),
        weight_decay=0.1,
        decay_mask="kernels",
        layer_decay=0.5,
        momentum_dtype="bfloat16",
    )
    random = np.random.default_rng(0)
    parameters = []
    for layer, name in PARAMETERS.items():
        with keras.name_scope(layer):
            parameters.append(keras.Variable(random.normal(size=SHAPE), name=name))
    optimizer.build(parameters)
    return optimizer, [*parameters, *optimizer.variables]


def _update(optimizer, variables, gradients):
    """Assigns the results of `update` to the variables."""
    values = [ops.convert_to_tensor(variable) for variable in variables]
    count = len(PARAMETERS)
    before = TrainState(values[:count], [], values[count:], [], [])
    after, _, _ = update(optimizer, before, gradients, ops.zeros(1), [], running=True)
    for variable, value in zip(variables, [*after.weights, *after.slots], strict=True):
        variable.assign(value)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_update_equals_apply_or_skips_nan(name):
    ours, our_variables = _optimizer(name)
    theirs, their_variables = _optimizer(name)
    random = np.random.default_rng(1)
    for _ in range(4):
        gradients = [
            ops.convert_to_tensor(random.normal(size=SHAPE), "float32") for _ in PARAMETERS
        ]
        _update(ours, our_variables, gradients)
        theirs.apply(gradients)
        before = [to_numpy(variable) for variable in our_variables]
        _update(ours, our_variables, [np.nan * gradient for gradient in gradients])
        for variable, value in zip(our_variables, before):
            np.testing.assert_array_equal(to_numpy(variable), value)
    for variable, expected in zip(our_variables, their_variables, strict=True):
        np.testing.assert_allclose(to_numpy(variable), to_numpy(expected), rtol=1e-6, atol=1e-7)
