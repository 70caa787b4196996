"""Checkpoints are written atomically, and corrupt checkpoints are skipped."""

import concurrent.futures
import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.training.checkpoint_manager import CheckpointManager
from keras_vit.training.diagnosis import Diverged
from keras_vit.training.tensorflow import TensorFlowEngine

STATE = "state-00000-of-00001.npz"
COUNTERS = {
    "step": 0,
    "skipped_steps": 3,
    "train_seconds": 0.1,
    "best_step": -1,
    "best_value": None,
}


def _engine(state, strategy=None, host_index=0):
    engine = TensorFlowEngine(strategy or tf.distribute.get_strategy())
    engine.state = state
    engine.host_index = host_index
    return engine


def _manager(folder, state, **engine):
    return CheckpointManager(folder, _engine(state, **engine), write=lambda line: None)


@pytest.fixture
def state(tiny):
    return tiny.new_state(tiny.strategy_of(1), averaged=True)


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


def _is_filled_with(state, step):
    return all((variable.numpy() == step).all() for variable in _variables(state))


def _save(folder, state, *steps, best_step=-1, **engine):
    """Saves checkpoints of several steps. Returns the manager and the list of its messages."""
    lines = []
    checkpoints = CheckpointManager(folder, _engine(state, **engine), write=lines.append)
    for step in steps:
        _fill(state, step)
        checkpoints.save(step, {**COUNTERS, "best_step": best_step})
    return checkpoints, lines


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("place", ["disk", "ram://checkpoints_test"])
def test_keeps_best_and_newest_two_and_restores_newest(place, state, tmp_path):
    folder = str(tmp_path / "checkpoints") if place == "disk" else place
    checkpoints, lines = _save(folder, state, 10, 20, 30, 40, best_step=10)
    assert checkpoints.steps() == [10, 30, 40]
    _fill(state, 0)
    assert checkpoints.restore() == {**COUNTERS, "step": 40, "best_step": 10}
    assert _is_filled_with(state, 40)
    assert lines == [f"resuming from step 40, {folder}/000000040"]


def test_unfinished_checkpoint_is_ignored_and_deleted(state, tmp_path):
    checkpoints, _ = _save(tmp_path, state, 10, 20)
    (tmp_path / "000000020" / "finished").unlink()
    assert checkpoints.steps() == [10]
    assert checkpoints.restore()["step"] == 10 and _is_filled_with(state, 10)
    _save(tmp_path, state, 30)
    assert _names(tmp_path) == ["000000010", "000000030"]


def _flip_bit(file):
    content = bytearray(file.read_bytes())
    content[content.index(b"kernel.npy") + 200] ^= 1
    file.write_bytes(content)


def _truncate(file):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("damage", [_flip_bit, _truncate, lambda file: file.unlink()])
def test_corrupt_checkpoint_falls_back_to_previous(damage, state, tmp_path):
    checkpoints, lines = _save(tmp_path, state, 10, 20)
    damage(tmp_path / "000000020" / STATE)
    _fill(state, 0)
    assert checkpoints.restore()["step"] == 10 and _is_filled_with(state, 10)
    assert "skipping the corrupt checkpoint" in lines[0] and "000000020: " in lines[0]
    # The resumed run saves step 15 while the corrupt checkpoint of step 20 still exists.
    _save(tmp_path, state, 15)
    assert checkpoints.restore()["step"] == 15
    _save(tmp_path, state, 20)
    assert checkpoints.restore()["step"] == 20 and checkpoints.steps() == [15, 20]


def test_malformed_counters_make_checkpoint_corrupt(state, tmp_path):
    checkpoints, lines = _save(tmp_path, state, 10, 20)
    for content in (b"", b"3", b"[" * 10**5, b'{"step": 10}', b'{"step": "20"}', b"\xff"):
        (tmp_path / "000000020" / "finished").write_bytes(content)
        assert checkpoints.restore()["step"] == 10, content
        skipped, _ = lines[-2:]
        assert "000000020: " in skipped and "finished" in skipped, content


def test_update_can_change_best_checkpoint(state, tmp_path):
    checkpoints, _ = _save(tmp_path, state, 10, 20, 30, best_step=10)
    checkpoints.update(30, {**COUNTERS, "best_step": 30})
    assert checkpoints.restore() == {**COUNTERS, "best_step": 30, "step": 30}
    assert checkpoints.steps() == [20, 30]


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
        ({"num_layers": 2}, "weights/.*/encoderblock_1"),
        ({"optimizer": "adamw"}, "slots/.*/adamw"),
        ({"averaged": True}, "averages/"),
    ],
)
def test_rejects_checkpoint_of_other_state(changes, missing, tiny, tmp_path):
    _save(tmp_path, tiny.new_state(tiny.strategy_of(1)), 10)
    other = tiny.new_state(tiny.strategy_of(1), **changes)
    with pytest.raises(ValueError, match=f"must match the model.*it needs '{missing}"):
        _manager(tmp_path, other).restore()
    assert _names(tmp_path) == ["000000010"]


def test_restores_checkpoint_without_loss_scale(state, tiny, tmp_path):
    _save(tmp_path, state, 10)
    scaled = tiny.new_state(tiny.strategy_of(1), averaged=True, scaled=True)
    assert _manager(tmp_path, scaled).restore()["step"] == 10
    assert _is_filled_with(scaled, 10) and scaled.variables.scaling[0].numpy() == 2.0**15


class Hosts:
    """Simulates two hosts. Each engine runs in its own thread, and `gather_hosts` waits for both
    threads."""

    def __init__(self, *engines):
        self._barrier = threading.Barrier(2, timeout=60)
        self._rows = {}
        for index, engine in enumerate(engines):
            engine.gather_hosts = functools.partial(self._gather, index)

    def _gather(self, index, values):
        self._rows[index] = tuple(values)
        self._barrier.wait()
        rows = [self._rows[0], self._rows[1]]
        self._barrier.wait()
        return rows


def _restore_on_two_hosts(tiny, folders):
    """Restores on two hosts. Returns the counters or the error message of each host, and the state
    of each host."""
    states = [tiny.new_state(tiny.strategy_of(1), averaged=True) for _ in folders]
    engines = [_engine(state, host_index=index) for index, state in enumerate(states)]
    Hosts(*engines)
    managers = [
        CheckpointManager(folder, engine, write=lambda line: None)
        for folder, engine in zip(folders, engines)
    ]

    def restore(manager):
        try:
            return manager.restore()
        except ValueError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(restore, managers)), states


def test_hosts_follow_process_0_to_older_checkpoint(state, tiny, tmp_path):
    """Process 0 has no checkpoint of step 20, so process 1 must not restore step 20 either."""
    _save(tmp_path / "a", state, 10)
    _save(tmp_path / "b", state, 10, 20)
    counters, states = _restore_on_two_hosts(tiny, [tmp_path / "a", tmp_path / "b"])
    assert [c["step"] for c in counters] == [10, 10]
    assert all(_is_filled_with(state, 10) for state in states)


def test_host_that_lacks_process_0_checkpoint_fails(state, tiny, tmp_path):
    _save(tmp_path / "a", state, 10, 20)
    _save(tmp_path / "b", state, 10)
    (first, other), _ = _restore_on_two_hosts(tiny, [tmp_path / "a", tmp_path / "b"])
    assert first["step"] == 20 and "does not contain the counters of step 20" in other
    (first, other), _ = _restore_on_two_hosts(tiny, [tmp_path / "none", tmp_path / "b"])
    assert first == other == {}  # process 0 starts from scratch, so both hosts do


def test_full_disk_keeps_previous_checkpoint(state, tmp_path, file_size_limit):
    checkpoints, _ = _save(tmp_path, state, 10)
    with (
        file_size_limit(1000),
        pytest.raises(ValueError, match="cannot be written .*Free disk space"),
    ):
        _save(tmp_path, state, 20)
    assert not list((tmp_path / "000000020").iterdir())
    assert checkpoints.steps() == [10] and checkpoints.restore()["step"] == 10
    assert _is_filled_with(state, 10)


def test_nonfinite_weights_are_not_saved(state, tmp_path):
    checkpoints, _ = _save(tmp_path, state, 10)
    state.model.get_layer("head").bias.assign([np.inf, 0, 0])
    with pytest.raises(Diverged, match="not finite and .*weights/.*/head/bias"):
        checkpoints.save(20, COUNTERS)
    assert checkpoints.steps() == [10]


def test_only_process_0_writes_files(state, tmp_path):
    _save(tmp_path / "checkpoints", state, 10, host_index=1)
    assert not list(tmp_path.iterdir())


def test_checkpoint_of_two_replicas_restores_on_one(tiny, tmp_path):
    strategy = tiny.strategy_of(2)
    state, alone = (
        tiny.new_state(each, optimizer="adamw", averaged=True)
        for each in (strategy, tiny.strategy_of(1))
    )
    for number, variable in enumerate(_variables(state)):
        variable.assign(tf.cast(tf.fill(variable.shape, number), variable.dtype))
    _manager(tmp_path, state, strategy=strategy).save(5, COUNTERS)
    assert _manager(tmp_path, alone).restore()["step"] == 5
    for number, variable in enumerate(_variables(alone)):
        assert (variable.numpy() == number).all(), variable.name
