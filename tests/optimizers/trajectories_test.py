"""Twenty training steps match the JAX reference (`vit_jax`), with the engine of the current
backend."""

import types

import numpy as np
import pytest
import tensorflow as tf
from ml_collections import ConfigDict

from keras_vit import Preprocessing, checkpoints, recipes, tasks
from keras_vit.training import choose_engine

from ..shared import GOLDEN_SIZES, read_arrays

SHAPE = (32, 32, 3)


def _inputs(images, labels):
    """Returns an input pipeline that repeats the given batches."""
    weights = np.ones(labels.shape, "float32")
    batches = tf.data.Dataset.from_tensor_slices((images, np.eye(10)[labels], weights))
    return types.SimpleNamespace(
        train=types.SimpleNamespace(class_names=list("0123456789")),
        batch_size=labels.shape[1],
        image_shape=SHAPE,
        model_preprocessing=Preprocessing,
        train_batches=lambda start, **host: batches.repeat(),
    )


def _config(inputs, optimizer, schedule):
    model = {name: size for name, size in GOLDEN_SIZES.items() if name != "classes"}
    fields = recipes.defaults(
        batch_size=inputs.batch_size,
        total_steps=20,
        strategy="default",
        accumulate_steps=2,
        steps_per_call=7,
        clip_norm=1.0,
        model={**model, "input_shape": SHAPE},
        optimizer=optimizer,
        schedule={"warmup_steps": 5, **schedule},
    )
    return ConfigDict(fields)


def _select(arrays, folder):
    prefix = f"{folder}/"
    return {k.removeprefix(prefix): arrays[k] for k in arrays if k.startswith(prefix)}


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        pytest.param(
            {"name": "sgd"}, {"decay": "cosine", "base": 0.1}, marks=pytest.mark.full, id="sgd"
        ),
        pytest.param(
            {"name": "adamw", "weight_decay": 0.1}, {"decay": "linear", "base": 3e-3}, id="adamw"
        ),
    ],
)
def test_twenty_steps_match_reference(optimizer, schedule, golden, tmp_path):
    arrays = golden(f"train_{optimizer['name']}_{schedule['decay']}_clip1")
    np.savez(tmp_path / "init.npz", **_select(arrays, "init"))
    inputs = _inputs(arrays["images"], arrays["labels"])
    config = _config(inputs, optimizer, schedule)
    engine = choose_engine(config)

    def load_weights(model):
        # The head in the file is zero, like a new head.
        checkpoints.load(model, tmp_path / "init.npz", head="new")

    engine.build(config, tasks.get(config), inputs, 20, load_weights)
    metrics = engine.train(0, 20).metrics
    np.testing.assert_allclose(metrics["loss"], arrays["losses"], rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], arrays["grad_norms"], rtol=1e-5)
    checkpoints.save(engine.gather_model(), tmp_path / "final.npz")
    final = read_arrays(tmp_path / "final.npz")
    expected = _select(arrays, "final")
    assert len(expected) == 40
    for name, array in expected.items():
        # In exact arithmetic, key biases have zero gradients. Adam turns the rounding errors into
        # steps.
        is_rounding = optimizer["name"] == "adamw" and name.endswith("key/bias")
        tolerance = 1e-3 if is_rounding else 1e-5
        np.testing.assert_allclose(final[name], array, atol=tolerance, rtol=0, err_msg=name)
