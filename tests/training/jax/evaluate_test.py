"""Tests of evaluation in the JAX engine, on one or more devices."""

import numpy as np
import pytest

from keras_vit import evaluation
from keras_vit.training.jax import state

from .. import tiny
from .engines import arrays_of, engine_of


@pytest.mark.parametrize(
    ("examples", "parts"), [(11, 2), pytest.param(1, 1, marks=pytest.mark.slow)]
)
def test_every_example_counts_once(examples, parts):
    inputs = tiny.input_of(test=examples)
    engine = engine_of(4, inputs, accumulate_steps=parts)
    loss, accuracy = tiny.expected_evaluation(engine.model, inputs.test)
    expected = {"loss": pytest.approx(loss, rel=1e-5), "accuracy": accuracy, "examples": examples}
    assert engine.evaluate() == expected
    evaluated = evaluation.get(["top1"])["top1"].evaluate(engine.model, inputs, engine)
    assert evaluated == {"accuracy": accuracy, "top5_accuracy": 1.0}


def test_engine_keeps_its_weights_when_keras_donates_those_of_the_model():
    inputs = tiny.input_of()
    engine = engine_of(inputs=inputs)
    metrics = engine.evaluate()
    engine.gather_model().predict_on_batch(np.zeros((2, *inputs.image_shape), "float32"))
    assert engine.evaluate() == metrics


def test_ema_starts_from_loaded_weights_and_is_swapped_in(monkeypatch):
    monkeypatch.setattr(state, "MIN_SHARDED_SIZE", 1)
    engine = engine_of(2, shard="optimizer")
    variables = engine.model.trainable_variables
    for weight, average in zip(engine.state.weights, engine.state.averages, strict=True):
        np.testing.assert_array_equal(average, weight)
    engine.train(0, 2)
    arrays = arrays_of(engine)
    plain = engine.evaluate()
    with pytest.raises(KeyError), engine.ema_scope():
        for variable in variables:
            np.testing.assert_array_equal(variable.numpy(), arrays[f"average of {variable.path}"])
        assert engine.evaluate() != plain
        raise KeyError
    for variable in variables:
        np.testing.assert_array_equal(variable.numpy(), arrays[variable.path])
    assert engine.evaluate() == plain
