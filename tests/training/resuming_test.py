"""A run that was killed and started again is, bit for bit, the run that was not killed."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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
    """Runs that nobody killed, one of a kind: `(workdir, model, result)`."""
    done = {}

    def run(kind):
        if kind not in done:
            workdir = tmp_path_factory.mktemp(kind)
            done[kind] = (workdir, *small_run.start(kind, workdir, write=lambda line: None))
        return done[kind]

    return run


@pytest.mark.parametrize(
    ("kind", "moment", "step"),
    [("alone", "step  7/11", 4), ("alone", "saving", 4), ("mirrored", "after step 5", 4)],
)
def test_after_kill_9_the_losses_and_the_weights_are_those_of_the_whole_run(kind, moment, step, whole, tmp_path):
    died = subprocess.run([sys.executable, SCRIPT, kind, tmp_path, moment], capture_output=True, text=True, check=False)
    assert died.returncode == -9, died.stderr
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) > step
    lines = []
    model, result = small_run.start(kind, tmp_path, write=lines.append)
    assert f"going on from step {step}, {tmp_path}/checkpoints/00000000{step}" in lines
    workdir, expected_model, expected = whole(kind)
    assert _files(tmp_path) == _files(workdir)
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 1 + small_run.STEPS
    for ours, theirs in zip(_weights(model), _weights(expected_model)):
        np.testing.assert_array_equal(ours, theirs)
    assert {k: v for k, v in result.items() if "test" in k} == {k: v for k, v in expected.items() if "test" in k}


def _workers(workdir, moment=""):
    """Two processes that train together; the second one may kill itself."""
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(free.getsockname()[1])
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    processes = []
    for index in range(2):
        environment = {**os.environ, "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}
        command = [sys.executable, SCRIPT, "workers", workdir, *([moment] if moment else [])]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    return processes
