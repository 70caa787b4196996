"""A run that was killed and started again is, bit for bit, the run that was not killed."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_vit import training

SCRIPT = Path(__file__).parent.parent / "small_run.py"
SPEC = importlib.util.spec_from_file_location("small_run", SCRIPT)
small_run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(small_run)


def _files(workdir):
    return {name: (workdir / name).read_text() for name in ("metrics.csv", "evaluations.csv")}


def _weights(model):
    return [variable.numpy() for variable in model.variables if "seed" not in variable.path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody killed, on four devices: `(workdir, RunResult)`, and a copy of the workdir after step 7."""
    folder = tmp_path_factory.mktemp("whole")
    write = small_run.writer(folder / "run", "step  7/11", folder / "copy", write=lambda line: None)
    return folder / "run", small_run.start("alone", folder / "run", write), folder / "copy"


@pytest.mark.parametrize(
    ("moment", "step"),
    [("", 5), *[pytest.param(*case, marks=pytest.mark.slow) for case in (("step  7/11", 5), ("saving", 4))]],
)
def test_from_any_moment_the_losses_and_the_weights_are_those_of_the_whole_run(moment, step, whole, tmp_path):
    workdir, expected, copy = whole
    if moment:
        command = [sys.executable, SCRIPT, "alone", tmp_path, moment]
        died = subprocess.run(command, capture_output=True, text=True, check=False)
        assert died.returncode == -9, died.stderr
    else:
        shutil.copytree(copy, tmp_path, dirs_exist_ok=True)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) > step
    lines = []
    result = small_run.start("alone", tmp_path, write=lines.append)
    assert f"going on from step {step}, {tmp_path}/checkpoints/00000000{step}" in lines
    assert _files(tmp_path) == _files(workdir)
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 1 + small_run.STEPS
    for ours, theirs in zip(_weights(result.model), _weights(expected.model)):
        np.testing.assert_array_equal(ours, theirs)
    ours, theirs = ({k: v for k, v in run.metrics.items() if "test" in k} for run in (result, expected))
    assert ours == theirs


@pytest.mark.slow
def test_sigterm_saves_and_the_same_call_goes_on(whole, tmp_path):
    def write(line):
        if line.startswith("step  2/11"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(training.Preempted, match="stopped by SIGTERM after step 2 and saved"):
        small_run.start("alone", tmp_path, write=write)
    lines = []
    small_run.start("alone", tmp_path, write=lines.append)
    assert any(line.startswith("going on from step 2, ") for line in lines)
    assert _files(tmp_path) == _files(whole[0])


def _workers(workdir, moment="", kind="workers"):
    """Two processes of two devices that train together; the first one, which writes lines, may kill itself."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(free.getsockname()[1])
    processes = []
    for index in range(2):
        task = {"cluster": {"worker": [f"localhost:{p}" for p in ports]}, "task": {"type": "worker", "index": index}}
        command = [sys.executable, str(SCRIPT), kind, str(workdir), moment]
        flags = os.environ.get("XLA_FLAGS", "").replace("device_count=4", "device_count=2")
        environment = {**os.environ, "XLA_FLAGS": flags, "TF_CONFIG": json.dumps(task)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen(command, env=environment, **pipes))
    return processes


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The workdir of two processes that nobody killed."""
    workdir = tmp_path_factory.mktemp("pair")
    outputs = [process.communicate()[0] for process in _workers(workdir)]
    assert "JAX on 4 x cpu of 2 hosts, weights and optimizer whole on each: 4 x 80 images a step" in outputs[0], outputs
    return workdir


def test_two_processes_of_two_devices_have_the_numbers_of_one_of_four_masks_included(pair, tmp_path):
    small_run.start("workers", tmp_path, write=lambda line: None, strategy="auto")
    for name in ("metrics.csv", "evaluations.csv"):
        ours, theirs = (training.read_metrics(workdir / name) for workdir in (pair, tmp_path))
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)
    checkpoint = pair / "checkpoints" / f"{small_run.STEPS:09}"
    assert {file.name for file in checkpoint.iterdir()} == {
        "finished", "state-00000-of-00002.npz", "state-00001-of-00002.npz",
    }  # fmt: skip


@pytest.mark.slow
def test_two_processes_that_were_killed_end_as_two_that_were_not(pair, tmp_path):
    killed = _workers(tmp_path, moment="step  7/11")
    outputs = [killed[0].communicate()[0]]
    killed[1].kill()  # it would find out by itself, after a while
    outputs.append(killed[1].communicate()[0])
    assert killed[0].returncode == -9, outputs
    outputs = [process.communicate()[0] for process in _workers(tmp_path)]
    assert "going on from step 5," in outputs[0], outputs
    assert _files(tmp_path) == _files(pair)
    ours, theirs = (np.load(workdir / "weights.npz", allow_pickle=False) for workdir in (tmp_path, pair))
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_two_processes_that_divide_the_weights_have_the_numbers_of_one_that_does_not(tmp_path):
    outputs = [process.communicate()[0] for process in _workers(tmp_path / "pair", kind="sharded_workers")]
    layout = "weights and optimizer divided among them"
    assert f"JAX on 4 x cpu of 2 hosts, {layout}: 4 x 80 images a step" in outputs[0], outputs
    small_run.start("sharded_workers", tmp_path / "one", write=lambda line: None, strategy="auto", shard="")
    for name in ("metrics.csv", "evaluations.csv"):
        ours, theirs = (training.read_metrics(tmp_path / workdir / name) for workdir in ("pair", "one"))
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)
    # Each process wrote the half of the divided arrays that its devices hold, and nothing was gathered for it.
    parts = sorted((tmp_path / "pair" / "checkpoints" / f"{small_run.STEPS:09}").glob("state-*.npz"))
    sizes = [part.stat().st_size for part in parts]
    assert len(sizes) == 2 and max(sizes) < 1.2 * min(sizes), sizes
