"""Tests of evaluation in the TensorFlow engine, on one or more replicas."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from ml_collections import ConfigDict

from keras_vit import evaluation, recipes
from keras_vit.training.tensorflow import TensorFlowEngine

from ...shared import SIZES


def _engine(tiny, replicas, inputs, **changes):
    """Returns an engine whose model has the weights of `tiny.new_state`."""
    model = {**SIZES, "patch_size": 2}
    config = ConfigDict(recipes.defaults(batch_size=8, total_steps=5, model=model, **changes))
    weights = tiny.new_state(tiny.strategy_of(1)).model.get_weights()
    engine = TensorFlowEngine(tiny.strategy_of(replicas))
    task = tiny.classification(model=model)
    engine.build(config, task, inputs, 5, lambda model: model.set_weights(weights))
    return engine


@pytest.mark.parametrize(
    ("replicas", "examples"), [(2, 11), pytest.param(4, 1, marks=pytest.mark.full)]
)
def test_every_example_counts_once(replicas, examples, tiny):
    inputs = tiny.input_of(test=examples)
    engine = _engine(tiny, replicas, inputs)
    metrics = engine.evaluate()
    loss, accuracy = tiny.expected_evaluation(engine.model, inputs.test)
    assert list(metrics) == ["loss", "accuracy", "examples"] and metrics["examples"] == examples
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert metrics["accuracy"] == accuracy
    evaluated = evaluation.get(["top1"])["top1"].evaluate(engine.model, inputs, engine)
    assert evaluated == {"accuracy": metrics["accuracy"], "top5_accuracy": 1.0}
    # evaluation.evaluate() needs no engine and returns the same metrics.
    assert evaluation.evaluate(engine.model, ["top1"], inputs) == {
        "top1/accuracy": pytest.approx(metrics["accuracy"]),
        "top1/top5_accuracy": 1.0,
    }


@pytest.mark.full
def test_evaluation_uses_training_micro_batches(tiny):
    sizes = []

    def compute(model, batch):
        sizes.append(batch[-1].shape[0])
        return {"mean": tf.reduce_mean(batch[0], (1, 2, 3))}

    whole = _engine(tiny, 2, tiny.input_of()).evaluate(compute)
    parts = _engine(tiny, 2, tiny.input_of(), accumulate_steps=4).evaluate(compute)
    assert {*sizes} == {4, 1}
    assert parts["mean"] == pytest.approx(whole["mean"], abs=1e-7)


@pytest.mark.full
def test_out_of_memory_error_suggests_accumulation(tiny):
    def sums(*batch):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    engine = _engine(tiny, 1, tiny.input_of())
    engine._make_sums = lambda compute: sums
    with pytest.raises(ValueError, match="accumulate_steps=8.*Received: OOM when allocating"):
        engine.evaluate()


@pytest.mark.full
def test_ema_starts_from_loaded_weights_and_is_swapped_in(tiny):
    engine = _engine(tiny, 2, tiny.input_of(), ema_decay=0.5)
    weights = [variable.numpy() for variable in engine.model.trainable_variables]
    for average, weight in zip(engine.state.variables.averages, weights):
        np.testing.assert_array_equal(average.numpy(), weight)
        average.assign(average + 1.0)
    averages = [average.numpy() for average in engine.state.variables.averages]

    def model_has(expected):
        for variable, value in zip(engine.model.trainable_variables, expected):
            for copy in engine.strategy.experimental_local_results(variable.value):
                np.testing.assert_array_equal(copy.numpy(), value)

    plain = engine.evaluate()
    with pytest.raises(KeyError), engine.ema_scope():
        model_has(averages)
        assert engine.evaluate() != plain
        raise KeyError
    model_has(weights)
    assert engine.evaluate() == plain
    engine.swap_ema()
    model_has(averages)
    for average, value in zip(engine.state.variables.averages, weights):
        np.testing.assert_array_equal(average.numpy(), value)


def test_rejects_evaluation_without_labeled_examples(tiny):
    inputs = tiny.input_of(test=3)
    labeled = inputs.test.read
    no_label = tf.zeros([0], tf.int64)

    def read(index):
        return {**labeled(index), "label": no_label}

    test = dataclasses.replace(inputs.test, read=read, labels=None)
    engine = _engine(tiny, 1, dataclasses.replace(inputs, test=test))
    with pytest.raises(ValueError, match="readable and labeled. Received: 3 examples"):
        engine.evaluate()
