"""Builds engines on four virtual CPU devices. Tests import this module."""

import jax
import keras
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from keras_vit import recipes, tasks
from keras_vit.training.jax import JaxEngine

from ...shared import randomize_head
from .. import tiny


def config_of(model=(), **changes):
    fields = {"batch_size": tiny.BATCH, "total_steps": 5, "clip_norm": 1.5, "ema_decay": 0.75}
    fields |= {"schedule": {"decay": "constant", "base": 0.1}, **changes}
    return ConfigDict(recipes.defaults(**fields, model={**tiny.MODEL, **dict(model)}))


def engine_of(devices=1, inputs=None, model=(), load=randomize_head, task=None, **changes):
    """Builds a `JaxEngine` on the first `devices` devices. By default, its images are those of
    `tiny`. `load` changes the initial weights, which are the same for all engines."""
    config = config_of(model, **changes)
    engine = JaxEngine(Mesh(np.array(jax.devices()[:devices]), ("data",)))
    inputs = tiny.input_of() if inputs is None else inputs
    task = task or tasks.get(config)
    keras.config.set_dtype_policy(config.precision)
    keras.utils.set_random_seed(0)
    engine.build(config, task, inputs, config.total_steps, load)
    keras.config.set_dtype_policy("float32")
    return engine


def train(engine, steps=5, steps_per_call=None):
    """Trains and returns the metrics, one row per step, and the outputs of the last call."""
    rows = []
    for first in range(0, steps, steps_per_call or steps):
        outputs = engine.train(first, min(steps_per_call or steps, steps - first))
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
