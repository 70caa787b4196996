"""Tests of a teacher on four devices: whole, and divided among them."""

import importlib.util
from pathlib import Path

import jax
import keras
import numpy as np
import pytest
from jax.sharding import Mesh

import keras_vit
from keras_vit import data, training
from keras_vit.training.jax import frozen

from ...shared import SIZES

SPEC = importlib.util.spec_from_file_location(
    "small_run", Path(__file__).parents[1] / "small_run.py"
)
small_run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(small_run)


def test_teacher_is_an_argument_of_the_program():
    model = keras.Sequential([keras.Input((100,)), keras.layers.Dense(100)])
    frozen.place(Mesh(np.array(jax.devices()), ("data",)), [model], "")
    function = frozen.jit(lambda x: model(x), [model])
    x = np.ones((1, 100), "float32")
    lowered = function.lower(x)
    assert len(lowered.as_text()) < 10_000
    assert lowered.compile().memory_analysis().argument_size_in_bytes > 40_000
    np.testing.assert_allclose(function(x), np.asarray(model(x)), rtol=1e-5)
    # Inside another compiled function, the variables are arguments of the outer one.
    outer = frozen.jit(lambda x: function(x), [model])
    assert len(outer.lower(x).as_text()) < 10_000


@pytest.mark.parametrize("shard", ["", "parameters"])
def test_resume_is_bit_exact(shard, tmp_path):
    keras.utils.set_random_seed(1)
    teacher = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), classes=10)
    teacher.head.kernel.assign(np.random.default_rng(0).normal(size=(8, 10)))
    teacher.save(tmp_path / "teacher.keras")
    config = {
        "task": "distillation",
        "teacher": str(tmp_path / "teacher.keras"),
        "distillation": {"label_weight": 0.5},
        "model": {**SIZES, "dropout": 0.1},
        "data": data.defaults(name="digits", mixup_alpha=0.5),
        "batch_size": 32,
        "total_steps": 4,
        "checkpoint_every_steps": 2,
        "eval_every_steps": 0,
        "shard": shard,
    }
    write = small_run.writer(tmp_path / "whole", "step 3/4", tmp_path / "stopped", print)
    whole = small_run.start("alone", tmp_path / "whole", write, **config)
    lines = []
    resumed = small_run.start("alone", tmp_path / "stopped", lines.append, **config)
    assert any(line.startswith("resuming from step 2,") for line in lines)
    for ours, theirs in zip(resumed.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    losses = training.read_metrics(tmp_path / "whole/metrics.csv")["loss"]
    one = small_run.start(
        "alone", tmp_path / "one", print, **{**config, "strategy": "default", "shard": ""}
    )
    alone = training.read_metrics(tmp_path / "one/metrics.csv")["loss"]
    np.testing.assert_allclose(losses, alone, rtol=1e-3)
    assert one.metrics["test/agreement"] > 0
