import json
import sys

import keras
import pytest

from keras_vit.training import Workdir

CONFIG = {"seed": 0, "model": {"input_shape": (8, 8, 3), "dropout": 0.0}}


def test_a_workdir_belongs_to_its_config(tmp_path):
    Workdir(tmp_path / "a" / "run", CONFIG)
    Workdir(tmp_path / "a" / "run", CONFIG)
    with pytest.raises(
        ValueError, match="another config: model.dropout was 0.0 and is 0.1, seed was 0 and is 1. Choose"
    ):
        Workdir(tmp_path / "a" / "run", {"seed": 1, "model": {"input_shape": (8, 8, 3), "dropout": 0.1}})
    with pytest.raises(ValueError, match="extra was None and is 2"):
        Workdir(tmp_path / "a" / "run", {**CONFIG, "extra": 2})
    assert json.loads((tmp_path / "a" / "run" / "config.json").read_text())["model.input_shape"] == [8, 8, 3]


def test_results_are_there_once_they_are_written(tmp_path):
    workdir = Workdir(tmp_path, CONFIG)
    assert workdir.results() is None
    workdir.write_results({"test/accuracy": 0.5})
    assert Workdir(tmp_path, CONFIG).results() == {"test/accuracy": 0.5}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["command.json", "config.json", "results.json"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="must be a folder that can be written .*Received: workdir=.*/file/run"):
        Workdir(tmp_path / "file" / "run", CONFIG)


def test_the_last_command_the_seed_and_the_versions_are_written(tmp_path):
    Workdir(tmp_path, CONFIG)
    written = json.loads((tmp_path / "command.json").read_text())
    assert written["command"] == sys.argv and written["seed"] == 0
    assert written["versions"]["keras"] == keras.__version__


def test_a_remote_workdir_works_as_a_local_one():
    workdir = Workdir("ram://workdir_test/run/", CONFIG)
    workdir.write_results({"test/accuracy": 0.5})
    assert str(workdir.path / "export") == "ram://workdir_test/run/export"
    assert Workdir("ram://workdir_test/run", CONFIG).results() == {"test/accuracy": 0.5}
    with pytest.raises(ValueError, match="another config: seed was 0 and is 1"):
        Workdir("ram://workdir_test/run", {**CONFIG, "seed": 1})


def test_of_several_workers_the_first_one_writes(tmp_path, monkeypatch):
    cluster = {"worker": ["a:1", "b:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    Workdir(tmp_path, CONFIG).write_results({})
    assert not list(tmp_path.iterdir())
