"""Tests of evaluation in the TensorFlow engine, on one or more replicas."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.training.tensorflow import TensorFlowEngine

from ...shared import randomize_head
from .. import tiny


def _engine(inputs, replicas=1, **changes):
    task = tiny.classification(batch_size=8, model=tiny.MODEL, **changes)
    engine = TensorFlowEngine(tiny.strategy_of(replicas))
    engine.build(task.config, task, inputs, 5, randomize_head)
    return engine


@pytest.mark.parametrize(
    ("replicas", "examples"), [(2, 11), pytest.param(4, 1, marks=pytest.mark.full)]
)
def test_every_example_counts_once(replicas, examples):
    inputs = tiny.input_of(test=examples)
    engine = _engine(inputs, replicas)
    loss, accuracy = tiny.expected_evaluation(engine.model, inputs.test)
    expected = {"loss": pytest.approx(loss, rel=1e-5), "accuracy": accuracy, "examples": examples}
    assert engine.evaluate() == expected


@pytest.mark.full
def test_evaluation_uses_training_micro_batches():
    sizes = set()

    def compute(model, batch):
        sizes.add(batch[-1].shape[0])
        return {"mean": tf.reduce_mean(batch[0], (1, 2, 3))}

    whole = _engine(tiny.input_of(), 2).evaluate(compute)
    parts = _engine(tiny.input_of(), 2, accumulate_steps=4).evaluate(compute)
    assert sizes == {4, 1}  # images of a replica
    assert parts["mean"] == pytest.approx(whole["mean"], abs=1e-7)


@pytest.mark.full
def test_out_of_memory_error_suggests_accumulation():
    def sums(*batch):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    engine = _engine(tiny.input_of())
    engine._make_sums = lambda compute: sums
    with pytest.raises(ValueError, match="accumulate_steps=8.*Received: OOM when allocating"):
        engine.evaluate()


@pytest.mark.full
def test_ema_starts_from_loaded_weights_and_is_swapped_in():
    engine = _engine(tiny.input_of(), 2, ema_decay=0.5)
    variables = engine.state.variables
    weights = [weight.numpy() for weight in variables.weights]

    def assert_values(variables, expected):
        for variable, value in zip(variables, expected, strict=True):
            for copy in engine.strategy.experimental_local_results(variable):
                np.testing.assert_array_equal(copy.numpy(), value)

    assert_values(variables.averages, weights)
    averages = [weight + 1.0 for weight in weights]
    for variable, value in zip(variables.averages, averages):
        variable.assign(value)
    with pytest.raises(KeyError), engine.ema_scope():
        assert_values(variables.weights, averages)
        raise KeyError
    assert_values(variables.weights, weights)
    assert_values(variables.averages, averages)


def test_rejects_evaluation_without_labeled_examples():
    inputs = tiny.input_of(test=3)
    read = inputs.test.read
    no_label = {"label": tf.zeros([0], tf.int64)}
    test = dataclasses.replace(inputs.test, read=lambda i: {**read(i), **no_label}, labels=None)
    engine = _engine(dataclasses.replace(inputs, test=test))
    with pytest.raises(ValueError, match="readable and labeled. Received: 3 examples"):
        engine.evaluate()
