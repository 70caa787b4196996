"""Checkpoints are whole or not at all."""

import resource

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.training.checkpoint_manager import CheckpointManager
from keras_vit.training.tensorflow import TensorFlowEngine

COUNTERS = {"step": 0, "skipped_steps": 3, "train_seconds": 0.1, "best_step": -1, "best_value": None}


def _engine(state, strategy=None):
    engine = TensorFlowEngine(strategy or tf.distribute.get_strategy())
    engine.state = state
    return engine


@pytest.fixture
def state(tiny):
    return tiny.new_state(tiny.strategy_of(1), averaged=True)


def _at(state, step):
    """Gives the state numbers that belong to a step."""
    for variable in (*state.model.trainable_variables, *state.averages):
        variable.assign(tf.fill(variable.shape, float(step)))


def _is_at(state, step):
    values = [variable.numpy() for variable in (*state.model.trainable_variables, *state.averages)]
    return all((value == step).all() for value in values)


def _saved(folder, state, *steps, best_step=-1, **arguments):
    lines = []
    checkpoints = CheckpointManager(folder, _engine(state), write=lines.append, **arguments)
    for step in steps:
        _at(state, step)
        checkpoints.save(step, {**COUNTERS, "best_step": best_step})
    return checkpoints, lines


@pytest.mark.parametrize("place", ["disk", "ram://checkpoints_test"])
def test_the_newest_comes_back_and_two_and_the_best_are_kept(place, state, tmp_path):
    folder = str(tmp_path / "checkpoints") if place == "disk" else place
    checkpoints, lines = _saved(folder, state, 10, 20, 30, 40, best_step=10)
    assert checkpoints.steps() == [10, 30, 40]
    _at(state, 0)
    assert checkpoints.restore() == {**COUNTERS, "step": 40, "best_step": 10} and _is_at(state, 40)
    assert lines == [f"going on from step 40, {folder}/000000040"]


def test_nothing_is_restored_where_there_is_nothing(state, tmp_path):
    assert CheckpointManager(tmp_path / "none", _engine(state)).restore() == {}


@pytest.mark.parametrize("kept", [["state.index"], ["state.data-00000-of-00001"], []], ids=["index", "data", "all"])
def test_a_checkpoint_that_was_never_finished_does_not_count_and_is_cleared_away(kept, state, tmp_path):
    checkpoints, _ = _saved(tmp_path, state, 10, 20)
    folder = tmp_path / "000000020"
    (folder / "finished").unlink()
    for file in folder.iterdir():
        if kept and file.name not in kept:
            file.unlink()
    assert checkpoints.steps() == [10]
    assert checkpoints.restore()["step"] == 10 and _is_at(state, 10)
    _saved(tmp_path, state, 30)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["000000010", "000000030"]


def _damaged(path, damage):
    data = path / "state.data-00000-of-00001"
    if damage == "a flipped bit":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif damage == "half the data":
        data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    elif damage == "no data":
        data.unlink()
    elif damage == "no counters":
        (path / "finished").write_text("")
    elif damage == "half the index":
        index = path / "state.index"
        index.write_bytes(index.read_bytes()[: index.stat().st_size // 2])
    else:
        (path / "state.index").write_bytes(b"")


@pytest.mark.parametrize(
    "damage", ["a flipped bit", "half the data", "no data", "half the index", "an empty index", "no counters"]
)
def test_a_corrupt_checkpoint_is_named_and_the_one_before_is_used(damage, state, tmp_path):
    checkpoints, lines = _saved(tmp_path, state, 10, 20)
    _damaged(tmp_path / "000000020", damage)
    _at(state, 0)
    assert checkpoints.restore()["step"] == 10 and _is_at(state, 10)
    assert lines[0].startswith(f"the checkpoint {tmp_path}/000000020 is corrupt and not used: ")
    _saved(tmp_path, state, 15)  # the run goes on from 10, without 20
    assert checkpoints.steps() == [10, 15]


def test_without_one_that_can_be_read_nothing_is_started_over(state, tmp_path):
    checkpoints, _ = _saved(tmp_path, state, 10)
    _damaged(tmp_path / "000000010", "a flipped bit")
    with pytest.raises(ValueError, match="No checkpoint of this run can be read.*Received: "):
        checkpoints.restore()


def test_a_full_disk_leaves_the_last_one_as_it_was(state, tmp_path):
    checkpoints, _ = _saved(tmp_path, state, 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # no file may grow any further
        with pytest.raises(ValueError, match=r"cannot be written \(.*The last one, .*/000000010, is as it was: make"):
            _saved(tmp_path, state, 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in tmp_path.iterdir()] == ["000000010"]
    assert checkpoints.restore()["step"] == 10 and _is_at(state, 10)


def test_weights_that_are_not_finite_are_not_saved(state, tmp_path):
    checkpoints, _ = _saved(tmp_path, state, 10)
    state.model.get_layer("head").bias.assign([np.inf, 0, 0])
    with pytest.raises(
        ValueError,
        match="not finite any more.*Nothing was saved. The last one, .*10, is as it was. Received: step=20",
    ):
        checkpoints.save(20, COUNTERS)
    assert checkpoints.steps() == [10]


def test_only_the_chief_leaves_files(state, tmp_path):
    _saved(tmp_path / "checkpoints", state, 10, chief=False)
    assert not list(tmp_path.iterdir())


def test_a_state_of_two_replicas_comes_back_on_one(tiny, tmp_path):
    state, *_ = tiny.train(2, options={"ema_decay": 0.5}, optimizer="adamw")
    saved = {v.path: v.numpy() for v in state.model.trainable_variables}
    CheckpointManager(tmp_path, _engine(state, tiny.strategy_of(2))).save(5, COUNTERS)
    alone = tiny.new_state(tiny.strategy_of(1), optimizer="adamw", averaged=True)
    assert CheckpointManager(tmp_path, _engine(alone), write=lambda line: None).restore()["step"] == 5
    for variable in alone.model.trainable_variables:
        np.testing.assert_array_equal(variable.numpy(), saved[variable.path])
    for one, two in zip(alone.optimizer.variables, state.optimizer.variables):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
