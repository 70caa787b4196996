"""Evaluation on several devices counts every example once, and uses the EMA weights inside
`ema_scope`."""

import numpy as np
import pytest

from keras_vit import evaluation


@pytest.mark.parametrize(
    ("devices", "examples", "parts"),
    [
        (4, 11, 2),
        pytest.param(4, 1, 1, marks=pytest.mark.slow),
    ],
)
def test_every_example_counts_once(devices, examples, parts, tiny, jax_engines):
    inputs = tiny.input_of(test=examples)
    engine = jax_engines.engine_of(devices, inputs, accumulate_steps=parts)
    metrics = engine.evaluate()
    loss, accuracy = tiny.expected_evaluation(engine.model, inputs.test)
    assert list(metrics) == ["loss", "accuracy", "examples"] and metrics["examples"] == examples
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    assert metrics["accuracy"] == accuracy
    evaluated = evaluation.get(["top1"])["top1"].evaluate(engine.model, inputs, engine)
    assert evaluated == {"accuracy": accuracy, "top5_accuracy": 1.0}
    # Keras' predict_on_batch donates the model's arrays. The engine must still be able to evaluate.
    engine.gather_model().predict_on_batch(np.zeros((2, *inputs.image_shape), "float32"))
    assert engine.evaluate() == metrics


def test_ema_starts_from_loaded_weights_and_is_swapped_in(tiny, jax_engines, monkeypatch):
    from keras_vit.training.jax import state

    monkeypatch.setattr(state, "MIN_SHARDED_SIZE", 1)
    engine = jax_engines.engine_of(2, tiny.input_of(), shard="optimizer")
    arrays = jax_engines.arrays_of(engine)
    for name in arrays:
        if not name.startswith("average"):
            np.testing.assert_array_equal(arrays[f"average of {name}"], arrays[name])
    engine.train(0, 2)
    arrays = jax_engines.arrays_of(engine)
    plain = engine.evaluate()
    with pytest.raises(KeyError), engine.ema_scope():
        for variable in engine.model.trainable_variables:
            np.testing.assert_array_equal(variable.numpy(), arrays[f"average of {variable.path}"])
        assert engine.evaluate() != plain
        raise KeyError
    for variable in engine.model.trainable_variables:
        np.testing.assert_array_equal(variable.numpy(), arrays[variable.path])
    assert engine.evaluate() == plain
