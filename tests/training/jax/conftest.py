"""Helpers for engines on four virtual CPU devices. The tests in this folder need the JAX
backend."""

import functools
import types

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

from keras_vit import recipes, tasks

from ...shared import SIZES

if keras.backend.backend() != "jax":
    collect_ignore_glob = ["*_test.py"]  # tests/jax_backend_test.py runs these files on JAX

BATCH = 8
MODEL = {**SIZES, "input_shape": (4, 6, 3), "patch_size": 2}


def config_of(model=(), **changes):
    fields = {"batch_size": BATCH, "total_steps": 5, "clip_norm": 1.5, "ema_decay": 0.75}
    fields |= {"schedule": {"decay": "constant", "base": 0.1}, **changes}
    return ConfigDict(recipes.defaults(**fields, model={**MODEL, **dict(model)}))


@functools.cache
def initial_weights(policy="float32", **model):
    """Returns the default weights of `engine_of`. The head's kernel is random instead of zero."""
    import jax

    from keras_vit import VisionTransformer

    keras.utils.set_random_seed(0)
    with jax.default_device(
        jax.devices("cpu")[0]
    ):  # the same device as the engine, to avoid compiling twice
        weights = VisionTransformer(classes=3, **{**MODEL, **model}).get_weights()
    random = np.random.default_rng(0)
    return [*weights[:-2], random.normal(size=weights[-2].shape).astype("float32"), weights[-1]]


def engine_of(devices=1, inputs=None, model=(), weights=None, task=None, **changes):
    """Builds a `JaxEngine` on the first `devices` devices."""
    import jax
    from jax.sharding import Mesh

    from keras_vit.training.jax import JaxEngine

    config = config_of(model, **changes)
    engine = JaxEngine(Mesh(np.array(jax.devices()[:devices]), ("data",)))
    weights = initial_weights(**dict(model)) if weights is None else weights
    keras.config.set_dtype_policy(config.precision)
    task = task or tasks.get(config)
    engine.build(
        config, task, inputs, config.total_steps, lambda model: _set_weights(model, weights)
    )
    keras.config.set_dtype_policy("float32")
    return engine


def _set_weights(model, weights):
    for variable, weight in zip(model.weights, weights, strict=True):
        variable.assign(weight)


def train(engine, steps=5, first=0, steps_per_call=None):
    """Trains and returns the metrics, one row per step, and the outputs of the last call."""
    rows = []
    for number in range(first, first + steps, steps_per_call or steps):
        outputs = engine.train(number, min(steps_per_call or steps, first + steps - number))
        rows.append(np.stack(list(outputs.metrics.values()), -1))
    return np.concatenate(rows), outputs


def arrays_of(engine):
    """Returns a dict of trainable weights and averages. The keys are `PATH` and `average of
    PATH`."""
    paths = [variable.path for variable in engine.model.trainable_variables]
    averages = {
        f"average of {path}": np.asarray(array) for path, array in zip(paths, engine.state.averages)
    }
    return {path: np.asarray(array) for path, array in zip(paths, engine.state.weights)} | averages


@pytest.fixture(scope="session")
def jax_engines():
    functions = (config_of, engine_of, train, arrays_of, initial_weights)
    return types.SimpleNamespace(**{function.__name__: function for function in functions})
