"""Tests of the command that runs the paper's studies."""

import importlib.util
import os
import types

import keras
import pytest

from ..shared import ROOT

SCRIPT = ROOT / "experiments" / "paper" / "__main__.py"

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="the command does not depend on the backend"
)


@pytest.fixture
def paper(scripts):
    """Returns a function that runs experiments/paper with its arguments."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    return lambda *arguments, cwd: scripts.run(SCRIPT, *arguments, cwd=cwd, env=environment)


@pytest.mark.slow
def test_study_runs_in_two_processes(paper, tmp_path):
    arguments = ("--study=table9", "--scale=tiny", "--workdir=study", "--processes=2")
    done = paper(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Everything is in study." in done.stdout
    assert (tmp_path / "study" / "table.md").exists()
    assert (tmp_path / "study" / "runs" / "row" / "results.json").exists()
    assert done.stdout.count("step 2/2") == 2


def test_measured_study_runs_alone(monkeypatch):
    spec = importlib.util.spec_from_file_location("paper_command", SCRIPT)
    command = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(command)
    monkeypatch.setattr(command, "FLAGS", types.SimpleNamespace(processes=3))
    assert command.batches(["fig12", "fig3", "fig4", "fig9", "fig10"]) == [
        ["fig3", "fig4", "fig9"],
        ["fig10"],
        ["fig12"],
    ]


def test_paper_scale_without_data_is_an_error(paper, tmp_path):
    done = paper("--study=table8", "--scale=paper", cwd=tmp_path)
    assert done.returncode == 2
    assert "error: `--scale=paper` needs the paper's data" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_list_shows_number_of_runs_and_images(paper, tmp_path):
    done = paper("--list", "--scale=paper", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines()[2:]}
    assert {"table8", "fig3", "fig4", "fig5", "self_supervision"} <= set(lines)
    # 8 runs, each with 7 epochs of 303 million images.
    assert lines["table8"][1:3] == ["8", "16,968,000,000"]
