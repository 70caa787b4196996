"""Tests of a teacher on four devices: whole, and divided among them."""

import types

import jax
import keras
import numpy as np
from jax.sharding import Mesh

import keras_vit
from keras_vit import data, training
from keras_vit.training.freezing import Held
from keras_vit.training.jax import frozen, state
from keras_vit.training.jax.variables import model_scope

from ...shared import SIZES, assert_same_weights, randomize_head
from .. import small_run

MAX_TEXT = 10_000  # length of a program without the 10,000 weights of a `_dense_model`


def _dense_model():
    """Returns a model whose variables are replicated on four devices."""
    model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(100)])
    frozen.place(Mesh(np.array(jax.devices()), ("data",)), [model], "")
    return model


def test_teacher_is_an_argument_of_the_program():
    model = _dense_model()
    function = frozen.jit(lambda x: model(x), [model])
    x = np.ones((1, 100), "float32")
    lowered = function.lower(x)
    assert len(lowered.as_text()) < MAX_TEXT
    assert lowered.compile().memory_analysis().argument_size_in_bytes > 4 * 100 * 100
    np.testing.assert_allclose(function(x), np.asarray(model(x)), rtol=1e-5)
    # Inside another compiled function, the variables are arguments of the outer one.
    outer = frozen.jit(lambda x: function(x), [model])
    assert len(outer.lower(x).as_text()) < MAX_TEXT


def test_teacher_is_an_argument_while_weights_are_held():
    teacher, student = _dense_model(), _dense_model()
    task = types.SimpleNamespace(
        metrics=(),
        frozen_models=(teacher,),
        losses_and_metrics=lambda model, batch, training: (model(batch) - teacher(batch), {}),
    )
    held = Held(task, student.trainable_variables)

    def step(weights, x):
        with model_scope(student, weights, []):
            return held.losses_and_metrics(student, x)[0]

    weights = [variable.value for variable in student.trainable_variables]
    x = np.ones((1, 100), "float32")
    function = frozen.jit(step, [teacher])
    assert len(function.lower(weights, x).as_text()) < MAX_TEXT
    np.testing.assert_allclose(function(weights, x), student(x) - teacher(x), atol=1e-5)


def test_resume_is_bit_exact_and_matches_one_device(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "MIN_SHARDED_SIZE", 1)  # sharded runs of `small_run` assign it
    keras.utils.set_random_seed(1)
    teacher = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), classes=10)
    randomize_head(teacher).save(tmp_path / "teacher.keras")
    changes = {
        "task": "distillation",
        "teacher": str(tmp_path / "teacher.keras"),
        "distillation": {"label_weight": 0.5},
        "model": {**SIZES, "dropout": 0.1},
        "data": data.defaults(name="digits", mixup_alpha=0.5),
        "batch_size": 32,
        "total_steps": 4,
        "checkpoint_every_steps": 2,
        "eval_every_steps": 0,
    }
    lines = []
    write = small_run.writer(tmp_path / "whole", "step 3/4", tmp_path / "stopped", lines.append)
    whole, resumed = (
        small_run.start("alone", tmp_path / name, write, shard="parameters", **changes)
        for name in ("whole", "stopped")
    )
    assert any(line.startswith("resuming from step 2,") for line in lines)
    assert_same_weights(resumed.model, whole.model)
    alone = small_run.start("alone", tmp_path / "alone", strategy="default", **changes)
    losses, expected = (
        training.read_metrics(tmp_path / name / "metrics.csv")["loss"]
        for name in ("stopped", "alone")
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    assert alone.metrics["test/agreement"] > 0
