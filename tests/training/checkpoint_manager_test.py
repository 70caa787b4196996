"""Checkpoints are written atomically, and corrupt checkpoints are skipped."""

import concurrent.futures
import functools
import resource
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


@pytest.fixture
def state(tiny):
    return tiny.new_state(tiny.strategy_of(1), averaged=True)


def _fill(state, step):
    """Fills the weights and averages with the step number."""
    for variable in (*state.model.trainable_variables, *state.variables.averages):
        variable.assign(tf.fill(variable.shape, float(step)))


def _is_filled_with(state, step):
    values = [
        variable.numpy()
        for variable in (*state.model.trainable_variables, *state.variables.averages)
    ]
    return all((value == step).all() for value in values)


def _saved(folder, state, *steps, best_step=-1, **arguments):
    lines = []
    checkpoints = CheckpointManager(folder, _engine(state, **arguments), write=lines.append)
    for step in steps:
        _fill(state, step)
        checkpoints.save(step, {**COUNTERS, "best_step": best_step})
    return checkpoints, lines


@pytest.mark.parametrize("place", ["disk", "ram://checkpoints_test"])
def test_keeps_best_and_newest_two_and_restores_newest(place, state, tmp_path):
    folder = str(tmp_path / "checkpoints") if place == "disk" else place
    checkpoints, lines = _saved(folder, state, 10, 20, 30, 40, best_step=10)
    assert checkpoints.steps() == [10, 30, 40]
    _fill(state, 0)
    assert checkpoints.restore() == {**COUNTERS, "step": 40, "best_step": 10} and _is_filled_with(
        state, 40
    )
    assert lines == [f"resuming from step 40, {folder}/000000040"]


def test_restore_without_checkpoint_returns_empty_dict(state, tmp_path):
    assert CheckpointManager(tmp_path / "none", _engine(state)).restore() == {}


@pytest.mark.parametrize("with_state", [True, False])
def test_unfinished_checkpoint_is_ignored_and_deleted(with_state, state, tmp_path):
    checkpoints, _ = _saved(tmp_path, state, 10, 20)
    (tmp_path / "000000020" / "finished").unlink()
    if not with_state:
        (tmp_path / "000000020" / STATE).unlink()
    assert checkpoints.steps() == [10]
    assert checkpoints.restore()["step"] == 10 and _is_filled_with(state, 10)
    _saved(tmp_path, state, 30)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["000000010", "000000030"]


def _damaged(path, damage):
    file = path / STATE
    content = bytearray(file.read_bytes())
    if damage == "a flipped bit":
        content[content.index(b"kernel.npy") + 200] ^= 1
        file.write_bytes(content)
    elif damage == "half the data":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "no data":
        file.unlink()
    else:
        (path / "finished").write_text("")


@pytest.mark.parametrize("damage", ["a flipped bit", "half the data", "no data", "no counters"])
def test_corrupt_checkpoint_falls_back_to_previous(damage, state, tmp_path):
    checkpoints, lines = _saved(tmp_path, state, 10, 20)
    _damaged(tmp_path / "000000020", damage)
    _fill(state, 0)
    assert checkpoints.restore()["step"] == 10 and _is_filled_with(state, 10)
    assert any(
        line.startswith(f"skipping the corrupt checkpoint {tmp_path}/000000020: ") for line in lines
    )
    # The resumed run continues from step 10 and saves step 15. The corrupt checkpoint of step 20
    # still exists.
    _saved(tmp_path, state, 15)
    assert checkpoints.restore()["step"] == 15
    _saved(tmp_path, state, 20)
    assert checkpoints.restore()["step"] == 20 and checkpoints.steps() == [15, 20]


def test_malformed_counters_make_checkpoint_corrupt(state, tmp_path):
    for content in ("3", "null", "[" * 10**5, '{"step": 10}', "{}", '{"step": "20"}', "\xff"):
        checkpoints, lines = _saved(tmp_path, state, 10, 20)
        (tmp_path / "000000020" / "finished").write_bytes(content.encode("latin-1"))
        assert checkpoints.restore()["step"] == 10
        assert any("000000020: " in line and "finished" in line for line in lines), content


def test_update_can_change_best_checkpoint(state, tmp_path):
    checkpoints, _ = _saved(tmp_path, state, 10, 20, 30, best_step=10)
    checkpoints.update(30, {**COUNTERS, "best_step": 30})
    assert checkpoints.restore() == {
        **COUNTERS,
        "best_step": 30,
        "step": 30,
    } and checkpoints.steps() == [20, 30]


def test_error_if_all_checkpoints_are_corrupt(state, tmp_path):
    checkpoints, _ = _saved(tmp_path, state, 10)
    _damaged(tmp_path / "000000010", "a flipped bit")
    for _ in range(2):
        with pytest.raises(ValueError, match="All checkpoints of this run are corrupt.*Received: "):
            checkpoints.restore()


def test_read_error_is_not_treated_as_corruption(state, tmp_path):
    checkpoints, _ = _saved(tmp_path, state, 10, 20)
    checkpoints._engine.restore = lambda path: _raise(OSError("503 service unavailable"))
    with pytest.raises(ValueError, match=r"\(503 service unavailable\).*Nothing was"):
        checkpoints.restore()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["000000010", "000000020"]


def _raise(error):
    raise error


def test_rejects_checkpoint_of_other_model(state, tiny, tmp_path):
    _saved(tmp_path, state, 10)
    other = tiny.new_state(tiny.strategy_of(1), averaged=True, num_layers=2)
    with pytest.raises(ValueError, match="The checkpoint must match the model"):
        CheckpointManager(tmp_path, _engine(other), write=lambda line: None).restore()
    assert [file.name for file in tmp_path.iterdir()] == ["000000010"]


@pytest.mark.parametrize("changes", [{"optimizer": "adamw"}, {"averaged": True}])
def test_error_names_missing_slots_or_averages(changes, tiny, tmp_path):
    _saved(tmp_path, tiny.new_state(tiny.strategy_of(1)), 10)
    other = tiny.new_state(tiny.strategy_of(1), **changes)
    with pytest.raises(
        ValueError,
        match="it needs '(slots/.*/adamw|averages)/",
    ):
        CheckpointManager(tmp_path, _engine(other), write=lambda line: None).restore()


def test_restores_checkpoint_without_loss_scale(state, tiny, tmp_path):
    _saved(tmp_path, state, 10)
    scaled = tiny.new_state(tiny.strategy_of(1), averaged=True, scaled=True)
    assert (
        CheckpointManager(tmp_path, _engine(scaled), write=lambda line: None).restore()["step"]
        == 10
    )
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


def _restored_on_two_hosts(tiny, folders):
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
    _saved(tmp_path / "a", state, 10)
    _saved(tmp_path / "b", state, 10, 20)
    counters, states = _restored_on_two_hosts(tiny, [tmp_path / "a", tmp_path / "b"])
    assert [c["step"] for c in counters] == [10, 10] and all(_is_filled_with(s, 10) for s in states)


def test_host_that_lacks_process_0_checkpoint_fails(state, tiny, tmp_path):
    _saved(tmp_path / "a", state, 10, 20)
    _saved(tmp_path / "b", state, 10)
    ((first, other), _) = _restored_on_two_hosts(tiny, [tmp_path / "a", tmp_path / "b"])
    assert first["step"] == 20 and "does not contain the counters of step 20" in other
    ((first, other), _) = _restored_on_two_hosts(tiny, [tmp_path / "none", tmp_path / "b"])
    assert first == other == {}  # process 0 starts from scratch, so both hosts do


def test_full_disk_keeps_previous_checkpoint(state, tmp_path):
    checkpoints, _ = _saved(tmp_path, state, 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # maximum file size in bytes
        with pytest.raises(
            ValueError,
            match=r"cannot be written \(.*Earlier checkpoints",
        ):
            _saved(tmp_path, state, 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (
        checkpoints.steps() == [10]
        and checkpoints.restore()["step"] == 10
        and _is_filled_with(state, 10)
    )


def test_nonfinite_weights_are_not_saved(state, tmp_path):
    checkpoints, _ = _saved(tmp_path, state, 10)
    state.model.get_layer("head").bias.assign([np.inf, 0, 0])
    with pytest.raises(
        Diverged,
        match="not finite and .*weights/.*/head/bias",
    ):
        checkpoints.save(20, COUNTERS)
    assert checkpoints.steps() == [10]


def test_only_process_0_writes_files(state, tmp_path):
    _saved(tmp_path / "checkpoints", state, 10, host_index=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_checkpoint_of_two_replicas_restores_on_one(tiny, tmp_path):
    state, *_ = tiny.train(2, options={"ema_decay": 0.5}, optimizer="adamw")
    saved = {v.path: v.numpy() for v in state.model.trainable_variables}
    CheckpointManager(tmp_path, _engine(state, tiny.strategy_of(2))).save(5, COUNTERS)
    alone = tiny.new_state(tiny.strategy_of(1), optimizer="adamw", averaged=True)
    assert (
        CheckpointManager(tmp_path, _engine(alone), write=lambda line: None).restore()["step"] == 5
    )
    for variable in alone.model.trainable_variables:
        np.testing.assert_array_equal(variable.numpy(), saved[variable.path])
    for one, two in zip(alone.optimizer.variables, state.optimizer.variables):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
