"""Tests of resuming on JAX, and of runs with two processes."""

import itertools
import os
import shutil
import signal

import numpy as np
import pytest

from keras_vit import training
from keras_vit.training import loop

from ...shared import assert_same_arrays, assert_same_weights, read_arrays, start_workers, tables_of
from .. import small_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Trains on four devices. Returns the workdir, the `RunResult` and a copy of the workdir at
    step 7."""
    folder = tmp_path_factory.mktemp("whole")
    write = small_run.writer(folder / "run", "step  7/11", folder / "copy", write=lambda line: None)
    return folder / "run", small_run.start("alone", folder / "run", write), folder / "copy"


@pytest.mark.parametrize(
    ("moment", "step"),
    [
        ("", 5),
        *[
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("step  7/11", 5), ("saving", 4))
        ],
    ],
)
def test_resume_is_bit_exact(moment, step, whole, scripts, tmp_path):
    workdir, expected, copy = whole
    if moment:
        died = scripts.run(small_run.__file__, "alone", tmp_path, moment)
        assert died.returncode == -9, died.stderr
    else:
        shutil.copytree(copy, tmp_path, dirs_exist_ok=True)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) > step
    lines = []
    result = small_run.start("alone", tmp_path, write=lines.append)
    assert f"resuming from step {step}, {tmp_path}/checkpoints/00000000{step}" in lines
    assert tables_of(tmp_path) == tables_of(workdir)
    assert (tmp_path / "metrics.csv").read_text().count("\n") == 1 + small_run.STEPS
    assert_same_weights(result.model, expected.model)
    ours, theirs = (
        {k: v for k, v in run.metrics.items() if "test" in k} for run in (result, expected)
    )
    assert ours == theirs


@pytest.mark.slow
def test_sigterm_saves_and_next_call_resumes(whole, tmp_path):
    def write(line):
        if line.startswith("step  2/11"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(training.Preempted, match="stopped by SIGTERM after step 2 and saved"):
        small_run.start("alone", tmp_path, write=write)
    lines = []
    small_run.start("alone", tmp_path, write=lines.append)
    assert any(line.startswith("resuming from step 2, ") for line in lines)
    assert tables_of(tmp_path) == tables_of(whole[0])


def test_length_of_calls_changes_nothing(whole, tmp_path, monkeypatch):
    numbers = itertools.cycle([2, 3, 1])
    monkeypatch.setattr(loop, "_steps_in_time", lambda engine, seconds, steps: next(numbers))
    result = small_run.start("alone", tmp_path, write=lambda line: None, log_every_steps=100)
    other, expected, _ = whole
    assert tables_of(tmp_path) == tables_of(other)
    assert_same_weights(result.model, expected.model)


def _workers(scripts, workdir, moment="", kind="workers"):
    """Starts two processes with two devices each.

    If `moment` is set, process 0 kills itself after it prints a line that starts with `moment`.
    """
    flags = os.environ.get("XLA_FLAGS", "").replace("device_count=4", "device_count=2")
    return start_workers(scripts, small_run.__file__, kind, workdir, moment, XLA_FLAGS=flags)


@pytest.fixture(scope="module")
def pair(scripts, tmp_path_factory):
    """Returns the workdir of an uninterrupted run with two processes."""
    workdir = tmp_path_factory.mktemp("pair")
    ended = [process.wait() for process in _workers(scripts, workdir)]
    line = "JAX on 4 x cpu of 2 hosts, weights and optimizer replicated: 4 x 80 images per step"
    assert line in ended[0].stdout, ended
    return workdir


def test_losses_of_two_processes_match_one_process(pair, tmp_path):
    small_run.start("workers", tmp_path, write=lambda line: None, strategy="auto")
    for name in ("metrics.csv", "evaluations.csv"):
        ours, theirs = (training.read_metrics(workdir / name) for workdir in (pair, tmp_path))
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)
    checkpoint = pair / "checkpoints" / f"{small_run.STEPS:09}"
    assert {file.name for file in checkpoint.iterdir()} == {
        "finished",
        "state-00000-of-00002.npz",
        "state-00001-of-00002.npz",
    }


@pytest.mark.slow
def test_resume_of_two_killed_processes_is_bit_exact(pair, scripts, tmp_path):
    killed = _workers(scripts, tmp_path, moment="step  7/11")
    ended = [killed[0].wait()]
    os.kill(killed[1].pid, signal.SIGKILL)  # do not wait until process 1 times out
    ended.append(killed[1].wait())
    assert ended[0].returncode == -9, ended
    ended = [process.wait() for process in _workers(scripts, tmp_path)]
    assert "resuming from step 5," in ended[0].stdout, ended
    assert tables_of(tmp_path) == tables_of(pair)
    assert_same_arrays(*(read_arrays(workdir / "weights.npz") for workdir in (tmp_path, pair)))


def test_losses_of_sharded_and_replicated_runs_match(pair, scripts, tmp_path):
    ended = [process.wait() for process in _workers(scripts, tmp_path, kind="sharded_workers")]
    layout = "weights and optimizer sharded"
    assert f"JAX on 4 x cpu of 2 hosts, {layout}: 4 x 80 images per step" in ended[0].stdout, ended
    for name in ("metrics.csv", "evaluations.csv"):
        ours, theirs = (training.read_metrics(workdir / name) for workdir in (tmp_path, pair))
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)
    # The state files of the two processes have similar sizes. Together, they contain each array
    # once.
    checkpoints = [
        workdir / "checkpoints" / f"{small_run.STEPS:09}" for workdir in (tmp_path, pair)
    ]
    sizes, sizes_of_whole = (
        [_array_bytes(part) for part in folder.glob("state-*.npz")] for folder in checkpoints
    )
    assert len(sizes) == 2 and max(sizes) < 1.2 * min(sizes), sizes
    assert sum(sizes) == sum(sizes_of_whole)


def _array_bytes(path):
    with np.load(path, allow_pickle=False) as arrays:
        return sum(array.nbytes for array in arrays.values())
