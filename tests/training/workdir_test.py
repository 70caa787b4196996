"""Tests of the folder of a run: its config, which changes of the config it allows, and its lock."""

import json
import math
import subprocess
import sys

import keras
import pytest

from keras_vit import data, files, recipes
from keras_vit.training import Workdir, lock, read_config
from keras_vit.training.lock import workdir_lock
from keras_vit.training.workdir import read_model

CONFIG = {"seed": 0, "model": {"input_shape": (8, 8, 3), "dropout": 0.0}}


def _read(path):
    return json.loads(path.read_text())


def test_rejects_other_config(tmp_path):
    folder = tmp_path / "a" / "run"
    Workdir(folder, CONFIG)
    assert not list(tmp_path.iterdir())  # the constructor writes nothing
    for _ in range(2):  # the config may be the same
        Workdir(folder, CONFIG).claim()
    changed = {"seed": 1, "model": {"input_shape": (8, 8, 3), "dropout": 0.1}, "extra": 2}
    message = "extra was None and is 2, model.dropout was 0.0 and is 0.1, seed was 0 and is 1"
    with pytest.raises(ValueError, match=message):
        Workdir(folder, changed)


def test_config_is_restored(tmp_path):
    config = recipes.defaults(evals=("top1",))
    assert config["model"] == config["data"] == {}  # config.json has no empty groups
    Workdir(tmp_path, config).claim()
    assert read_config(tmp_path).to_dict() == config


def test_missing_config_fields_have_defaults(tmp_path):
    full = {**recipes.defaults(architecture="ViT-Ti/16"), "data": data.defaults()}
    Workdir(tmp_path, full).claim()
    stored = _read(tmp_path / "config.json")
    for name in ("skip_nonfinite", "optimizer.no_decay", "data.split_seed", "model.layer_scale"):
        del stored[name]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    Workdir(tmp_path, full)
    with pytest.raises(ValueError, match="skip_nonfinite was False and is True"):
        Workdir(tmp_path, {**full, "skip_nonfinite": True})


def test_results_may_be_nan(tmp_path):
    workdir = Workdir(tmp_path, CONFIG)
    assert workdir.results() is None
    workdir.write_results({"test/loss": math.nan, "test/accuracy": 0.5})
    results = Workdir(tmp_path, CONFIG).results()
    assert math.isnan(results["test/loss"]) and results["test/accuracy"] == 0.5


def test_command_seed_and_versions_are_recorded(tmp_path):
    workdir = Workdir(tmp_path, CONFIG)
    workdir.claim()
    written = _read(tmp_path / "command.json")
    assert written["command"] == sys.argv and written["seed"] == 0
    assert written["versions"]["keras"] == keras.__version__


def test_finished_run_keeps_its_command(tmp_path):
    workdir = Workdir(tmp_path, CONFIG)
    workdir.write_results({})
    workdir.claim()
    assert not (tmp_path / "command.json").exists()


def test_rejects_unwritable_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="must be a writable folder"):
        Workdir(tmp_path / "file" / "run", CONFIG).claim()


@pytest.mark.parametrize("name", ["config.json", "results.json", "changes.json"])
def test_error_names_damaged_file(name, tmp_path):
    Workdir(tmp_path, CONFIG).claim()
    (tmp_path / name).write_text("\x00")
    with pytest.raises(ValueError, match=f"must .*Received: .*{name}"):
        Workdir(tmp_path, {**CONFIG, "recipe": "new words"}).claim()


def test_missing_model_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="Received: .*model.json"):
        read_model(tmp_path)


def test_changed_machine_settings_are_recorded(tmp_path):
    Workdir(tmp_path, {**CONFIG, "tpu_address": "a", "data": {"threads": 0}}).claim()
    checkpoint = tmp_path / "checkpoints" / "000000040"
    checkpoint.mkdir(parents=True)
    (checkpoint / "finished").write_text("{}")
    for _ in range(2):
        Workdir(tmp_path, {**CONFIG, "tpu_address": "b", "data": {"threads": 4}}).claim()
    changes = {"tpu_address": ["a", "b"], "data.threads": [0, 4]}
    assert _read(tmp_path / "changes.json") == [{"step": 40, "changes": changes}]


@pytest.mark.parametrize("name", ["data.path", "data.class_names", "data.train_split"])
def test_paths_may_change(name, tmp_path):
    Workdir(tmp_path, {"data.name": "list", name: "old"}).claim()
    Workdir(tmp_path, {"data.name": "list", name: "new"}).claim()


def test_split_of_a_named_dataset_may_not_change(tmp_path):
    Workdir(tmp_path, {"data.name": "digits", "data.train_split": "old"}).claim()
    with pytest.raises(ValueError, match="data.train_split was 'old' and is 'new'"):
        Workdir(tmp_path, {"data.name": "digits", "data.train_split": "new"})


def test_finished_run_belongs_to_its_data(tmp_path):
    photos = tmp_path / "photos"
    workdir = Workdir(tmp_path / "run", {"data.path": str(photos)})
    workdir.claim()
    workdir.write_results({"test/accuracy": 0.5})
    Workdir(tmp_path / "run", {"data.path": f"{photos}/"})
    with pytest.raises(ValueError, match="data.path was .*this run is finished"):
        Workdir(tmp_path / "run", {"data.path": "elsewhere"})


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        ("optimizer.name", "sgd", "adamw"),
        ("ema_decay", 0.0, 0.9),
        ("ema_decay", 0.9, 0.0),
        ("weights", "", "augreg"),
        ("weights_channels", "mean", "sum"),
    ],
)
def test_rejects_changes_that_cannot_take_effect(name, before, now, tmp_path):
    Workdir(tmp_path, {name: before}).claim()
    with pytest.raises(ValueError, match=f"cannot change within a run.*: {name}={now!r}"):
        Workdir(tmp_path, {name: now}, change=True)


def test_config_changes_need_flag_and_unfinished_run(tmp_path):
    Workdir(tmp_path, {"ema_decay": 0.9}).claim()
    changed = {"ema_decay": 0.99}
    with pytest.raises(ValueError, match="ema_decay was 0.9 and is 0.99"):
        Workdir(tmp_path, changed)
    workdir = Workdir(tmp_path, changed, change=True)
    workdir.claim()
    changes = {"ema_decay": [0.9, 0.99]}
    assert _read(tmp_path / "changes.json") == [{"step": 0, "changes": changes}]
    assert _read(tmp_path / "config.json") == changed
    workdir.write_results({})
    with pytest.raises(ValueError, match="this run is finished"):
        Workdir(tmp_path, {"ema_decay": 0.9}, change=True)


def test_leftovers_of_killed_run_are_removed(tmp_path):
    (tmp_path / "export" / "partial-abc_1234").mkdir(parents=True)
    (tmp_path / "export" / "1").mkdir()
    (tmp_path / "results.0123456789ab.part.json").touch()
    (tmp_path / "mine.part.json").touch()
    with Workdir(tmp_path, CONFIG).lock():
        names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert names == {"export", "export/1", "lock", "mine.part.json"}


def test_refused_run_leaves_no_files(tmp_path):
    for folder in (tmp_path / "new", tmp_path):
        with pytest.raises(KeyError), Workdir(folder, CONFIG).lock():
            raise KeyError
    assert not list(tmp_path.iterdir())


def test_lock_file_of_finished_process_is_empty(tmp_path):
    with Workdir(tmp_path, CONFIG).lock():
        Workdir(tmp_path, CONFIG).claim()
    assert (tmp_path / "lock").read_text() == ""


def test_removed_lock_file_locks_nothing(tmp_path, monkeypatch):
    flock = lock.fcntl.flock

    def remove_first(*arguments):
        (tmp_path / "lock").unlink()
        flock(*arguments)

    monkeypatch.setattr(lock.fcntl, "flock", remove_first)
    with pytest.raises(ValueError, match="Another run is using"), workdir_lock(tmp_path):
        pass


HOLD = """
import sys
from keras_vit.training.lock import workdir_lock
with workdir_lock(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.full
def test_lock_of_killed_process_is_free(tmp_path):
    command = [sys.executable, "-c", HOLD, tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(ValueError, match=f"this workdir: process {other.pid} on"):
            Workdir(tmp_path, CONFIG).lock().__enter__()
        other.kill()
    with Workdir(tmp_path, CONFIG).lock():
        pass


def test_lock_is_reentrant_and_exclusive(tmp_path):
    workdir = Workdir(tmp_path, CONFIG)
    other = Workdir(tmp_path, CONFIG)
    with workdir.lock(), workdir.lock(), pytest.raises(ValueError, match="is using"), other.lock():
        pass
    with other.lock():
        pass


def test_remote_workdir():
    folder = "ram://workdir_test/run"
    workdir = Workdir(f"{folder}/", CONFIG)
    with workdir.lock(), Workdir(folder, CONFIG).lock():  # remote folders are not locked
        workdir.claim()
    workdir.write_results({"test/accuracy": 0.5})
    assert files.list_dir(folder) == ["command.json", "config.json", "results.json"]
    assert str(workdir.path / "export") == f"{folder}/export"
    assert Workdir(folder, CONFIG).results() == {"test/accuracy": 0.5}
    with pytest.raises(ValueError, match="seed was 0 and is 1"):
        Workdir(folder, {**CONFIG, "seed": 1})


def test_only_process_0_writes(tmp_path, monkeypatch):
    cluster = {"worker": ["a:1", "b:1"]}
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    workdir = Workdir(tmp_path, CONFIG)
    with workdir.lock():
        workdir.claim()
        workdir.write_results({})
        assert not list(tmp_path.iterdir())
