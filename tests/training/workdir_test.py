import json

import pytest

from keras_vit.training import Workdir

CONFIG = {"seed": 0, "model": {"input_shape": (8, 8, 3), "dropout": 0.0}}


def test_a_workdir_belongs_to_its_config(tmp_path):
    Workdir(tmp_path / "a" / "run", CONFIG)
    Workdir(tmp_path / "a" / "run", CONFIG)
    with pytest.raises(ValueError, match="another config: model.dropout was 0.0 and is 0.1, seed was 0 and is 1. Take"):
        Workdir(tmp_path / "a" / "run", {"seed": 1, "model": {"input_shape": (8, 8, 3), "dropout": 0.1}})
    with pytest.raises(ValueError, match="extra was None and is 2"):
        Workdir(tmp_path / "a" / "run", {**CONFIG, "extra": 2})
    assert json.loads((tmp_path / "a" / "run" / "config.json").read_text())["model.input_shape"] == [8, 8, 3]


def test_results_are_there_once_they_are_written(tmp_path):
    workdir = Workdir(tmp_path, CONFIG)
    assert workdir.results() is None
    workdir.write_results({"test/accuracy": 0.5})
    assert Workdir(tmp_path, CONFIG).results() == {"test/accuracy": 0.5}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.json", "results.json"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="must be a folder that can be written .*Received: workdir=.*/file/run"):
        Workdir(tmp_path / "file" / "run", CONFIG)
