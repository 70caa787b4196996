"""Fixtures that create a tiny run and skip tests if the TPU compiler is not installed."""

import functools
import importlib.util
import types

import pytest
from ml_collections import ConfigDict

from keras_vit import data, recipes, tasks, tpu
from keras_vit.tpu.inputs import InputShapes

from ..shared import SIZES

# TPUs pad the last dimension of an array to a multiple of 128. `hidden_size` and `mlp_dim` need no
# padding.
TINY_MODEL = {**SIZES, "input_shape": (8, 8, 3), "hidden_size": 128, "mlp_dim": 256}


def tiny_config(model=(), **changes):
    """Returns the config of a tiny model on digits with AdamW, clipping, EMA and mixed bfloat16."""
    fields = {
        "batch_size": 32,
        "total_steps": 20,
        "precision": "mixed_bfloat16",
        "clip_norm": 1.0,
        "ema_decay": 0.9,
        "model": {**TINY_MODEL, **dict(model)},
        "data": data.defaults(name="digits"),
        "optimizer": {"name": "adamw"},
    }
    return ConfigDict(recipes.defaults(**{**fields, **changes}))


def check_tiny(topology, batch_size=32, search=False, **changes):
    """Returns the `Check` of a tiny run."""
    config = tiny_config(**changes)
    return tpu.check(tasks.get(config), config, batch_size, topology, search=search)


@pytest.fixture(scope="session")
def tiny():
    """Returns functions that create the config, task and inputs of a tiny run, and check it."""
    inputs = functools.partial(InputShapes, TINY_MODEL["input_shape"])
    return types.SimpleNamespace(
        config=tiny_config, task=tasks.get, inputs=inputs, check=check_tiny
    )


@pytest.fixture(scope="session")
def tpu_compiler():
    """Skips a test if the extra `aot` is not installed."""
    missing = [name for name in ("jax", "libtpu") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"no {' and '.join(missing)}: pip install -e '.[cpu,aot]'")
