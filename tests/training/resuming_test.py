"""A run that was killed and started again is, bit for bit, the run that was not killed."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from keras_vit import training
from keras_vit.training.checkpoint_manager import finished_steps

SCRIPT = Path(__file__).parent / "small_run.py"
SPEC = importlib.util.spec_from_file_location("small_run", SCRIPT)
small_run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(small_run)


def _files(workdir):
    return {name: (workdir / name).read_text() for name in ("metrics.csv", "evaluations.csv")}


def _weights(model):
    return [variable.numpy() for variable in model.variables if "seed" not in variable.path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that nobody killed, one of a kind: `(workdir, RunResult)`."""
    results = {}

    def run(kind):
        if kind not in results:
            workdir = tmp_path_factory.mktemp(kind)
            results[kind] = (workdir, small_run.start(kind, workdir, write=lambda line: None))
        return results[kind]

    return run


@pytest.mark.parametrize(
    ("kind", "moment", "step"),
    [("alone", "step  7/11", 5), ("alone", "saving", 4), ("mirrored", "after step 5", 5)],
)
def test_after_kill_9_the_losses_and_the_weights_are_those_of_the_whole_run(kind, moment, step, whole, tmp_path):
    died = subprocess.run([sys.executable, SCRIPT, kind, tmp_path, moment], capture_output=True, text=True, check=False)
    assert died.returncode == -9, died.stderr
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) > step
    lines = []
    result = small_run.start(kind, tmp_path, write=lines.append)
    assert f"going on from step {step}, {tmp_path}/checkpoints/00000000{step}" in lines
    workdir, expected = whole(kind)
    assert _files(tmp_path) == _files(workdir)
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 1 + small_run.STEPS
    for ours, theirs in zip(_weights(result.model), _weights(expected.model)):
        np.testing.assert_array_equal(ours, theirs)
    ours, theirs = ({k: v for k, v in run.metrics.items() if "test" in k} for run in (result, expected))
    assert ours == theirs


def test_sigterm_saves_and_the_same_call_goes_on(whole, tmp_path):
    def write(line):
        if line.startswith("step  2/11"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(training.Preempted, match="stopped by SIGTERM after step 2 and saved"):
        small_run.start("alone", tmp_path, write=write)
    assert (tmp_path / "checkpoints" / "000000002" / "finished").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    lines = []
    small_run.start("alone", tmp_path, write=lines.append)
    assert any(line.startswith("going on from step 2, ") for line in lines)
    assert _files(tmp_path) == _files(whole("alone")[0])


def test_an_evaluation_that_fails_or_is_interrupted_loses_nothing_and_comes_again(whole, tmp_path):
    calls = []

    def evaluate(model, inputs, engine):
        calls.append(len(calls))
        if calls[-1] == 0:
            raise ValueError("the folder has gone")
        if calls[-1] == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"score": 0.5}

    toy = {"evaluators": {"toy": types.SimpleNamespace(METRICS=("score",), evaluate=evaluate)}, "evals": ("toy",)}
    with pytest.raises(ValueError, match="the folder has gone"):
        small_run.start("alone", tmp_path, write=lambda line: None, **toy)
    assert finished_steps(tmp_path / "checkpoints") == [4, 5]
    with pytest.raises(training.Preempted, match="stopped by SIGTERM after step 5 and saved"):
        small_run.start("alone", tmp_path, write=lambda line: None, **toy)
    small_run.start("alone", tmp_path, write=lambda line: None, **toy)
    assert len(calls) == 4  # the failed one, steps 5 and 10, and the last one
    expected = _files(whole("alone")[0])
    assert (tmp_path / "metrics.csv").read_text() == expected["metrics.csv"]
    rows = (tmp_path / "evaluations.csv").read_text().splitlines()
    assert [row.rpartition(",")[0] for row in rows] == expected["evaluations.csv"].splitlines()  # without the toy's


def _workers(workdir, moment=""):
    """Two processes that train together; the first one, which writes lines, may kill itself."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(free.getsockname()[1])
    processes = []
    for index in range(2):
        task = {"cluster": {"worker": [f"localhost:{p}" for p in ports]}, "task": {"type": "worker", "index": index}}
        command = [sys.executable, str(SCRIPT), "workers", str(workdir), moment]
        environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen(command, env=environment, **pipes))
    return processes


def test_two_workers_that_were_killed_end_as_two_that_were_not(tmp_path):
    outputs = [process.communicate()[0] for process in _workers(tmp_path / "whole")]
    assert "MultiWorkerMirroredStrategy: 2 x 160 images a step" in outputs[0], outputs[0]
    killed = _workers(tmp_path / "killed", moment="step  7/11")
    outputs = [killed[0].communicate()[0]]
    killed[1].kill()  # it would find out by itself, after a while
    outputs.append(killed[1].communicate()[0])
    assert [process.returncode for process in killed] == [-9, -9], outputs
    outputs = [process.communicate()[0] for process in _workers(tmp_path / "killed")]
    assert "going on from step 5," in outputs[0], outputs
    assert _files(tmp_path / "killed") == _files(tmp_path / "whole")
    ours, theirs = (np.load(tmp_path / name / "weights.npz", allow_pickle=False) for name in ("killed", "whole"))
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])
