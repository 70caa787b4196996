"""Tests of checkpoints of replicated and sharded training states."""

import keras
import numpy as np
import pytest

from keras_vit.checkpoints.readers import NpzFile
from keras_vit.training import state_files
from keras_vit.training.checkpoint_manager import CheckpointManager

COUNTERS = {
    "step": 3,
    "skipped_steps": 0,
    "train_seconds": 0.1,
    "best_step": -1,
    "best_value": None,
}


@pytest.fixture(scope="module")
def engines(tiny, jax_engines):
    """Returns `{(devices, shard): engine}`. Each engine has trained for a different number of
    steps."""
    from keras_vit.training.jax import state

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(state, "MIN_SHARDED_SIZE", 1)
    engines = {
        (devices, shard): jax_engines.engine_of(
            devices,
            tiny.input_of(),
            shard=shard,
            optimizer={"name": "adamw"},
            precision="mixed_float16",
        )
        for devices, shard in ((1, ""), (4, "parameters"), (2, "optimizer"))
    }
    monkeypatch.undo()
    for number, engine in enumerate(engines.values(), start=1):
        engine.train(0, number)
    return engines


def _numbers(engine):
    import jax

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
    CheckpointManager(tmp_path, writer, write=lambda line: None).save(3, COUNTERS)
    assert CheckpointManager(tmp_path, reader, write=lambda line: None).restore() == COUNTERS
    assert _same(_numbers(reader), expected)
    assert [array.sharding for array in reader.state.slots] == shardings
    for variable, array in zip(reader.model.trainable_variables, reader.state.weights):
        np.testing.assert_array_equal(variable.numpy(), np.asarray(array))
    reader.train(3, 1)


def test_sharded_arrays_are_written_in_parts(engines, tmp_path):
    engines[4, "parameters"].save(str(tmp_path / "state"))
    (file,) = tmp_path.iterdir()
    assert file.name == "state-00000-of-00001.npz"
    with NpzFile(file) as npz:
        kernels = {
            name: array.shape for name, array in npz.arrays.items() if "embedding/kernel" in name
        }
        names = [name for name in npz.arrays if "iteration" in name]
    weights = {name for name in kernels if name.startswith("weights/0/embedding/kernel@")}
    assert weights == {f"weights/0/embedding/kernel@{3 * i},0" for i in range(4)}
    assert {kernels[name] for name in weights} == {(3, 8)}
    assert names == ["slots/0/adamw/iteration"]


def test_checkpoint_needs_files_of_all_hosts(tmp_path):
    whole = np.arange(12.0, dtype="float32").reshape(4, 3)
    path = str(tmp_path / "state")
    for host in (0, 1):
        pieces = [("weights/0/a@b", (2 * host, 0), whole[2 * host : 2 * host + 2])]
        pieces += [("slots/0/n", None, np.int32(7))] if host == 0 else []
        state_files.write_state(path, pieces, host, 2)
    with state_files.StateReader(path) as reader:
        reader.check("weights/0/a@b", (4, 3))
        np.testing.assert_array_equal(reader.read("weights/0/a@b", (4, 3)), whole)
        part = reader.read("weights/0/a@b", (4, 3), (slice(1, 3), slice(None)))
        np.testing.assert_array_equal(part, whole[1:3])
        assert reader.read("slots/0/n", ()) == 7
        for shape in ((4, 4), (3, 3), (12,)):
            with pytest.raises(ValueError, match="it needs 'weights/0/a@b' of shape"):
                reader.check("weights/0/a@b", shape)
        with pytest.raises(ValueError, match=r"it needs 'weights/1/c' .* Received: \[\]"):
            reader.check("weights/1/c", (2,))
    (tmp_path / "state-00001-of-00002.npz").unlink()
    with pytest.raises(state_files.CorruptCheckpointError, match="missing: .*00001-of-00002"):
        state_files.StateReader(path)


def test_corrupt_checkpoint_falls_back_to_previous(engines, tmp_path):
    engine = engines[1, ""]
    checkpoints = CheckpointManager(tmp_path, engine, write=lambda line: None)
    checkpoints.save(3, COUNTERS)
    expected = _numbers(engine)
    engine.train(3, 1)
    checkpoints.save(4, {**COUNTERS, "step": 4})
    file = tmp_path / "000000004" / "state-00000-of-00001.npz"
    content = bytearray(file.read_bytes())
    content[content.index(b"embedding/kernel.npy") + 200] ^= 1
    file.write_bytes(content)
    assert checkpoints.restore()["step"] == 3
    assert _same(_numbers(engine), expected)


def test_rejects_checkpoint_of_other_model(engines, tmp_path, tiny, jax_engines):
    keras.utils.clear_session()
    model = {"mlp_dim": 10}
    jax_engines.engine_of(1, tiny.input_of(), model).save(str(tmp_path / "state"))
    engine = engines[1, ""]
    before = _numbers(engine)
    with pytest.raises(ValueError, match="must match the model.*mlp_1/kernel"):
        engine.restore(str(tmp_path / "state"))
    assert _same(_numbers(engine), before)
