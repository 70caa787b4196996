"""Tests of `CheckpointManager`: which checkpoints it keeps, and which one it restores."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.training.checkpoint_manager import CheckpointManager
from keras_vit.training.diagnosis import Diverged
from keras_vit.training.tensorflow import TensorFlowEngine
from keras_vit.training.update import INITIAL_LOSS_SCALE

from . import tiny

STATE = "state-00000-of-00001.npz"
COUNTERS = {"skipped_steps": 3, "best_step": -1}


def _manager(folder, state, write=print, strategy=None, host_index=0):
    engine = TensorFlowEngine(strategy or tf.distribute.get_strategy())
    engine.state = state
    engine.host_index = host_index
    return CheckpointManager(folder, engine, write)


@pytest.fixture
def state():
    return tiny.new_state(averaged=True)


def _variables(state):
    """Returns the weights, their averages and the slots of the optimizer."""
    return [
        *state.model.trainable_variables,
        *state.variables.averages,
        *state.optimizer.variables,
    ]


def _fill(state, step):
    """Fills all variables with the step number."""
    for variable in _variables(state):
        variable.assign(tf.cast(tf.fill(variable.shape, step), variable.dtype))


def _save(folder, state, *steps, best_step=-1, **options):
    """Saves checkpoints of several steps. Returns the manager and the list of its messages."""
    lines = []
    checkpoints = _manager(folder, state, lines.append, **options)
    for step in steps:
        _fill(state, step)
        checkpoints.save(step, {**COUNTERS, "best_step": best_step})
    return checkpoints, lines


def _restored_step(checkpoints, state):
    """Restores a checkpoint of `_save` and returns its step."""
    _fill(state, 0)
    step = checkpoints.restore()["step"]
    assert all((variable.numpy() == step).all() for variable in _variables(state))
    return step


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("place", ["disk", "ram://checkpoints_test"])
def test_keeps_best_and_newest_two_and_restores_newest(place, state, tmp_path):
    folder = str(tmp_path / "checkpoints") if place == "disk" else place
    checkpoints, lines = _save(folder, state, 10, 20, 30, 40, best_step=10)
    assert checkpoints.steps() == [10, 30, 40]
    assert _restored_step(checkpoints, state) == 40
    assert lines == [f"resuming from step 40, {folder}/000000040"]


def test_restore_returns_the_saved_counters(state, tmp_path):
    checkpoints, _ = _save(tmp_path, state, 10, best_step=5)
    assert checkpoints.restore() == {**COUNTERS, "step": 10, "best_step": 5}


def test_unfinished_checkpoint_is_ignored_and_deleted(state, tmp_path):
    checkpoints, _ = _save(tmp_path, state, 10, 20)
    (tmp_path / "000000020" / "finished").unlink()
    assert _restored_step(checkpoints, state) == 10
    _save(tmp_path, state, 30)
    assert _names(tmp_path) == ["000000010", "000000030"]


def _flip_bit(file):
    content = bytearray(file.read_bytes())
    content[content.index(b"kernel.npy") + 200] ^= 1
    file.write_bytes(content)


def _truncate(file):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("damage", [_flip_bit, _truncate])
def test_corrupt_checkpoint_falls_back_to_previous(damage, state, tmp_path):
    checkpoints, lines = _save(tmp_path, state, 10, 20)
    damage(tmp_path / "000000020" / STATE)
    assert _restored_step(checkpoints, state) == 10
    assert f"skipping the corrupt checkpoint {tmp_path}/000000020: " in lines[0]


def test_corrupt_checkpoint_is_kept_until_its_step_is_saved_again(state, tmp_path):
    checkpoints, _ = _save(tmp_path, state, 10, 20)
    _flip_bit(tmp_path / "000000020" / STATE)
    _save(tmp_path, state, 15)
    assert _restored_step(checkpoints, state) == 15
    _save(tmp_path, state, 20)
    assert _restored_step(checkpoints, state) == 20 and checkpoints.steps() == [15, 20]


@pytest.mark.parametrize("content", [b"3", b"[" * 10**5, b'{"step": 10}', b"\xff"])
def test_malformed_counters_make_checkpoint_corrupt(content, state, tmp_path):
    checkpoints, lines = _save(tmp_path, state, 10, 20)
    (tmp_path / "000000020" / "finished").write_bytes(content)
    assert checkpoints.restore()["step"] == 10
    assert "000000020: " in lines[0] and "finished" in lines[0]


def test_error_if_all_checkpoints_are_corrupt(state, tmp_path):
    checkpoints, _ = _save(tmp_path, state, 10)
    _flip_bit(tmp_path / "000000010" / STATE)
    with pytest.raises(ValueError, match="All checkpoints of this run are corrupt"):
        checkpoints.restore()
    assert _names(tmp_path) == ["000000010"]


def test_read_error_is_not_treated_as_corruption(state, tmp_path, monkeypatch):
    checkpoints, _ = _save(tmp_path, state, 10, 20)

    def fail(path):
        raise OSError("503 service unavailable")

    monkeypatch.setattr(checkpoints._engine, "restore", fail)
    with pytest.raises(ValueError, match="503 service unavailable"):
        checkpoints.restore()
    assert _names(tmp_path) == ["000000010", "000000020"]


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"optimizer": "adamw"}, "slots/.*/adamw"),
        ({"averaged": True}, "averages/"),
    ],
)
def test_rejects_checkpoint_of_other_state(changes, missing, tmp_path):
    _save(tmp_path, tiny.new_state(), 10)
    other = tiny.new_state(**changes)
    with pytest.raises(ValueError, match=f"must match the model.*it needs '{missing}"):
        _manager(tmp_path, other).restore()
    assert _names(tmp_path) == ["000000010"]


def test_restores_checkpoint_without_loss_scale(state, tmp_path):
    _save(tmp_path, state, 10)
    scaled = tiny.new_state(averaged=True, scaled=True)
    assert _restored_step(_manager(tmp_path, scaled), scaled) == 10
    assert scaled.variables.scaling[0].numpy() == INITIAL_LOSS_SCALE


def _follower(folder, state, step):
    """Returns the manager of host 1 of two. Process 0 has restored `step`, or nothing if it is
    0."""
    checkpoints = _manager(folder, state, host_index=1)
    checkpoints._engine.gather_hosts = lambda values: [(step,), values]
    return checkpoints


def test_process_0_tells_the_other_hosts_its_step(state, tmp_path):
    checkpoints, _ = _save(tmp_path, state, 10)
    told = []
    checkpoints._engine.gather_hosts = lambda values: told.append(values) or [values, (0,)]
    checkpoints.restore()
    assert told == [[10]]


def test_other_hosts_restore_the_step_of_process_0(state, tmp_path):
    _save(tmp_path, state, 10, 20)
    assert _restored_step(_follower(tmp_path, state, step=10), state) == 10
    assert _follower(tmp_path, state, step=0).restore() == {}


def test_host_that_lacks_the_checkpoint_of_process_0_fails(state, tmp_path):
    _save(tmp_path, state, 10)
    with pytest.raises(ValueError, match="does not contain the counters of step 20"):
        _follower(tmp_path, state, step=20).restore()


def test_full_disk_keeps_previous_checkpoint(state, tmp_path, file_size_limit):
    checkpoints, _ = _save(tmp_path, state, 10)
    with file_size_limit(1000), pytest.raises(ValueError, match="written .*Free disk space"):
        _save(tmp_path, state, 20)
    assert not list((tmp_path / "000000020").iterdir())
    assert checkpoints.steps() == [10]


def test_nonfinite_weights_are_not_saved(state, tmp_path):
    checkpoints, _ = _save(tmp_path, state, 10)
    state.model.get_layer("head").bias.assign([np.inf, 0, 0])
    with pytest.raises(Diverged, match="not finite and .*weights/.*/head/bias"):
        checkpoints.save(20, COUNTERS)
    assert checkpoints.steps() == [10]


def test_only_process_0_writes_files(state, tmp_path):
    _save(tmp_path / "checkpoints", state, 10, host_index=1)
    assert not list(tmp_path.iterdir())


def test_checkpoint_of_two_replicas_restores_on_one(tmp_path):
    state, alone = (tiny.new_state(replicas, "adamw", averaged=True) for replicas in (2, 1))
    for number, variable in enumerate(_variables(state)):
        variable.assign(tf.cast(tf.fill(variable.shape, number), variable.dtype))
    _manager(tmp_path, state, strategy=tiny.strategy_of(2)).save(5, COUNTERS)
    assert _manager(tmp_path, alone).restore()["step"] == 5
    for number, variable in enumerate(_variables(alone)):
        assert (variable.numpy() == number).all(), variable.name
