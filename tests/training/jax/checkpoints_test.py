"""Tests of checkpoints of replicated and sharded training states."""

import jax
import keras
import numpy as np
import pytest

from keras_vit.checkpoints.readers import NpzFile
from keras_vit.training.checkpoint_manager import CheckpointManager
from keras_vit.training.jax import state

from .. import tiny
from .engines import engine_of

COUNTERS = {"step": 3, "best_step": -1}
ADAMW = {"optimizer": {"name": "adamw"}}


@pytest.fixture(scope="module")
def engines():
    """Returns `{(devices, shard): engine}`. Each engine has trained for a different number of
    steps."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(state, "MIN_SHARDED_SIZE", 1)
        engines = {
            (devices, shard): engine_of(
                devices, tiny.input_of(), shard=shard, precision="mixed_float16", **ADAMW
            )
            for devices, shard in ((1, ""), (4, "parameters"), (2, "optimizer"))
        }
    for steps, engine in enumerate(engines.values(), start=1):
        engine.train(0, steps)
    return engines


def _numbers(engine):
    return [np.asarray(array, "float32") for array in jax.tree.leaves(engine.state)]


def _same(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("written_by", "read_by"),
    [
        ((1, ""), (4, "parameters")),
        ((4, "parameters"), (2, "optimizer")),
        ((2, "optimizer"), (1, "")),
    ],
)
def test_restores_exactly_across_layouts(written_by, read_by, engines, tmp_path):
    writer = engines[written_by]
    reader = engines[read_by]
    expected = _numbers(writer)
    shardings = [array.sharding for array in reader.state.slots]
    assert not _same(_numbers(reader), expected)
    CheckpointManager(tmp_path, writer).save(3, COUNTERS)
    assert CheckpointManager(tmp_path, reader).restore() == COUNTERS
    assert _same(_numbers(reader), expected)
    assert [array.sharding for array in reader.state.slots] == shardings
    for variable, array in zip(reader.model.trainable_variables, reader.state.weights):
        np.testing.assert_array_equal(variable.numpy(), np.asarray(array))
    reader.train(3, 1)


def test_sharded_arrays_are_written_in_parts(engines, tmp_path):
    engines[4, "parameters"].save(str(tmp_path / "state"))
    with NpzFile(tmp_path / "state-00000-of-00001.npz") as npz:
        shapes = {name: array.shape for name, array in npz.arrays.items()}
    kernel = "weights/0/embedding/kernel"
    parts = {name: shape for name, shape in shapes.items() if name.startswith(kernel)}
    assert parts == {f"{kernel}@{first},0": (3, 8) for first in (0, 3, 6, 9)}
    assert [name for name in shapes if "iteration" in name] == ["slots/0/adamw/iteration"]


def test_rejects_checkpoint_of_other_model(engines, tmp_path):
    keras.utils.clear_session()
    engine_of(model={"mlp_dim": 10}).save(str(tmp_path / "state"))
    engine = engines[1, ""]
    before = _numbers(engine)
    with pytest.raises(ValueError, match="must match the model.*mlp_1/kernel"):
        engine.restore(str(tmp_path / "state"))
    assert _same(_numbers(engine), before)
