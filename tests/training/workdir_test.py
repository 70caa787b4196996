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


def test_workdir_rejects_other_config(tmp_path):
    Workdir(tmp_path / "a" / "run", CONFIG)
    assert not list(tmp_path.iterdir())  # the constructor writes nothing
    Workdir(tmp_path / "a" / "run", CONFIG).claim()
    Workdir(tmp_path / "a" / "run", CONFIG).claim()
    with pytest.raises(
        ValueError, match="model.dropout was 0.0 and is 0.1, seed was 0 and is 1. .* --change"
    ):
        Workdir(
            tmp_path / "a" / "run",
            {"seed": 1, "model": {"input_shape": (8, 8, 3), "dropout": 0.1}},
        )
    with pytest.raises(ValueError, match="extra was None and is 2"):
        Workdir(tmp_path / "a" / "run", {**CONFIG, "extra": 2})
    assert json.loads((tmp_path / "a" / "run" / "config.json").read_text())[
        "model.input_shape"
    ] == [8, 8, 3]


def test_results_round_trip(tmp_path):
    workdir = Workdir(tmp_path, CONFIG)
    workdir.claim()
    assert workdir.results() is None
    workdir.write_results({"test/accuracy": 0.5})
    assert Workdir(tmp_path, CONFIG).results() == {"test/accuracy": 0.5}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "command.json",
        "config.json",
        "results.json",
    ]


def test_nonfinite_results_are_valid_json(tmp_path):
    Workdir(tmp_path, CONFIG).write_results(
        {"test/loss": math.nan, "test/accuracy": 0.5, "test/knn": math.inf}
    )
    text = (tmp_path / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "test/accuracy": 0.5,
        "test/loss": None,
        "test/knn": None,
    }
    results = Workdir(tmp_path, CONFIG).results()
    assert math.isnan(results["test/loss"]) and results["test/accuracy"] == 0.5


def test_missing_config_fields_have_defaults(tmp_path):
    full = {**recipes.defaults(architecture="ViT-Ti/16"), "data": data.defaults()}
    Workdir(tmp_path, full).claim()
    stored = json.loads((tmp_path / "config.json").read_text())
    for name in ("skip_nonfinite", "optimizer.no_decay", "data.split_seed", "model.layer_scale"):
        del stored[name]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    Workdir(tmp_path, full)
    with pytest.raises(ValueError, match="another config: skip_nonfinite was False and is True"):
        Workdir(tmp_path, {**full, "skip_nonfinite": True})


def test_config_with_empty_groups_is_restored(tmp_path):
    config = recipes.defaults()
    assert config["model"] == config["data"] == {}
    Workdir(tmp_path, config).claim()
    assert read_config(tmp_path).to_dict() == config


def test_leftovers_of_killed_run_are_removed(tmp_path):
    (tmp_path / "export" / "partial-abc_1234").mkdir(parents=True)
    (tmp_path / "export" / "1").mkdir()
    (tmp_path / "results.0123456789ab.part.json").write_text("{")
    (tmp_path / "mine.part.json").write_text("{")
    with Workdir(tmp_path, CONFIG).lock():
        names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert names == {"export", "export/1", "lock", "mine.part.json"}


def test_rejects_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match="must be a writable folder. Received: workdir=.*/file/run"
    ):
        Workdir(tmp_path / "file" / "run", CONFIG).claim()


@pytest.mark.parametrize("name", ["config.json", "results.json", "changes.json"])
@pytest.mark.parametrize("content", ["", '{"seed": 0', "\x00\x00"])
def test_error_names_damaged_file(name, content, tmp_path):
    Workdir(tmp_path, CONFIG).claim()
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"must .*Received: .*{name}"):
        workdir = Workdir(tmp_path, {**CONFIG, "recipe": "new words"})
        workdir.results()
        workdir.claim()


def test_changed_machine_settings_are_recorded(tmp_path):
    Workdir(tmp_path, {**CONFIG, "tpu_address": "a", "data": {"threads": 0}}).claim()
    (tmp_path / "checkpoints" / "000000040").mkdir(parents=True)
    (tmp_path / "checkpoints" / "000000040" / "finished").write_text("{}")
    for _ in range(2):
        Workdir(tmp_path, {**CONFIG, "tpu_address": "b", "data": {"threads": 4}}).claim()
    changes = {"tpu_address": ["a", "b"], "data.threads": [0, 4]}
    assert json.loads((tmp_path / "changes.json").read_text()) == [{"step": 40, "changes": changes}]


@pytest.mark.parametrize(
    "name", ["data.path", "data.class_names", "data.train_split", "data.test_split"]
)
def test_paths_may_change(name, tmp_path):
    Workdir(tmp_path, {"data.name": "list", name: "old"}).claim()
    Workdir(tmp_path, {"data.name": "list", name: "new"}).claim()
    if name.endswith("_split"):
        Workdir(tmp_path / "digits", {"data.name": "digits", name: "old"}).claim()
        with pytest.raises(ValueError, match=f"{name} was 'old' and is 'new'"):
            Workdir(tmp_path / "digits", {"data.name": "digits", name: "new"})


@pytest.mark.parametrize("content", ["", "{"])
def test_missing_or_damaged_model_file_is_an_error(content, tmp_path):
    if content:
        (tmp_path / "model.json").write_text(content)
    with pytest.raises(ValueError, match="Received: .*model.json"):
        read_model(tmp_path)


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
    Workdir(tmp_path, {"seed": 0, name: before}).claim()
    with pytest.raises(ValueError, match=f"cannot change within a run.*: {name}={now!r}"):
        Workdir(tmp_path, {"seed": 0, name: now}, change=True)
    if before == 0.9:  # a run with EMA may change the decay
        Workdir(tmp_path, {"seed": 0, name: 0.99}, change=True)


def test_config_changes_need_flag_and_unfinished_run(tmp_path):
    Workdir(tmp_path, CONFIG).claim()
    changed = {**CONFIG, "clip_norm": 1.0}
    with pytest.raises(ValueError, match="clip_norm was 0.0 and is 1.0"):
        Workdir(tmp_path, changed)
    workdir = Workdir(tmp_path, changed, change=True)
    workdir.claim()
    assert json.loads((tmp_path / "changes.json").read_text()) == [
        {"step": 0, "changes": {"clip_norm": [0.0, 1.0]}}
    ]
    assert json.loads((tmp_path / "config.json").read_text())["clip_norm"] == 1.0
    workdir.write_results({})
    with pytest.raises(ValueError, match="because this run is finished"):
        Workdir(tmp_path, CONFIG, change=True)


HOLD = """
import sys, time
from keras_vit.training.lock import workdir_lock
with workdir_lock(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_refused_run_leaves_no_files(tmp_path):
    for folder in (tmp_path / "new", tmp_path):
        with pytest.raises(KeyError), Workdir(folder, CONFIG).lock():
            raise KeyError
    assert not list(tmp_path.iterdir())
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


@pytest.mark.full
def test_workdir_is_locked_only_by_live_run(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(ValueError, match=f"this workdir: process {other.pid} on"):
            Workdir(tmp_path, CONFIG).lock().__enter__()
        other.kill()
    workdir = Workdir(tmp_path, CONFIG)
    with (
        workdir.lock(),
        workdir.lock(),
        pytest.raises(ValueError, match="is using"),
        Workdir(tmp_path, CONFIG).lock(),
    ):
        pass
    with workdir.lock():
        pass


def test_remote_workdir_is_not_locked():
    files.make_dirs("ram://lock_test/run")
    with workdir_lock("ram://lock_test/run"), workdir_lock("ram://lock_test/run"):
        assert not files.exists("ram://lock_test/run/lock")


def test_command_seed_and_versions_are_recorded(tmp_path):
    Workdir(tmp_path, CONFIG).claim()
    written = json.loads((tmp_path / "command.json").read_text())
    assert written["command"] == sys.argv and written["seed"] == 0
    assert written["versions"]["keras"] == keras.__version__


def test_remote_workdir():
    workdir = Workdir("ram://workdir_test/run/", CONFIG)
    workdir.claim()
    workdir.write_results({"test/accuracy": 0.5})
    assert str(workdir.path / "export") == "ram://workdir_test/run/export"
    assert Workdir("ram://workdir_test/run", CONFIG).results() == {"test/accuracy": 0.5}
    with pytest.raises(ValueError, match="another config: seed was 0 and is 1"):
        Workdir("ram://workdir_test/run", {**CONFIG, "seed": 1})


def test_only_process_0_writes(tmp_path, monkeypatch):
    cluster = {"worker": ["a:1", "b:1"]}
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    )
    workdir = Workdir(tmp_path, CONFIG)
    with workdir.lock():
        workdir.claim()
        workdir.write_results({})
    assert not list(tmp_path.iterdir())


def test_a_finished_run_belongs_to_its_data(tmp_path):
    place = tmp_path / "photos"
    config = {**CONFIG, "data": {"path": str(place)}}
    workdir = Workdir(tmp_path / "run", config)
    workdir.claim()
    moved = {**CONFIG, "data": {"path": "elsewhere"}}
    Workdir(tmp_path / "run", moved)  # a fingerprint covers the data of a run that resumes
    workdir.write_results({"test/accuracy": 0.5})
    Workdir(tmp_path / "run", {**CONFIG, "data": {"path": f"{place}/"}})
    with pytest.raises(ValueError, match="data.path was .*this run is finished"):
        Workdir(tmp_path / "run", moved)
