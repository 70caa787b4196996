"""Tests of resuming on JAX, and of runs with two processes."""

import os
import signal

import numpy as np
import pytest

from keras_vit import training

from ...shared import assert_same_arrays, read_arrays, start_workers, tables_of
from .. import small_run
from ..resume_checks import (
    assert_resume_is_bit_exact,
    assert_sigterm_saves,
    assert_steps_per_call_change_nothing,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Trains on four devices. Returns the workdir, the `RunResult` and a copy of the workdir at
    step 7."""
    folder = tmp_path_factory.mktemp("whole")
    write = small_run.writer(folder / "run", "step  7/11", folder / "copy")
    return folder / "run", small_run.start("alone", folder / "run", write), folder / "copy"


def test_resume_is_bit_exact(whole):
    _, _, copy = whole
    step = 5  # of the last evaluation, which saves a checkpoint
    assert (copy / "metrics.csv").read_text().count("\n") > 1 + step
    assert_resume_is_bit_exact(copy, "alone", step, whole)


@pytest.mark.slow
def test_sigterm_saves_and_next_call_resumes(whole, tmp_path):
    assert_sigterm_saves(tmp_path, whole)


def test_steps_per_call_change_nothing(whole, tmp_path, monkeypatch):
    assert_steps_per_call_change_nothing(tmp_path, whole, monkeypatch)


def _start_pair(scripts, workdir, moment="", kind="workers"):
    """Starts two processes with two devices each.

    If `moment` is set, process 0 kills itself after it prints a line that starts with `moment`.
    """
    flags = os.environ.get("XLA_FLAGS", "").replace("device_count=4", "device_count=2")
    return start_workers(scripts, small_run.__file__, kind, workdir, moment, XLA_FLAGS=flags)


def _run_pair(scripts, workdir, line, kind="workers"):
    """Trains with two processes, whose log must contain a line."""
    ended = [process.wait() for process in _start_pair(scripts, workdir, kind=kind)]
    assert line in ended[0].stdout, ended


def _array_bytes(workdir):
    """Returns the bytes of the arrays in each file of the last checkpoint."""
    files = (workdir / "checkpoints" / f"{small_run.STEPS:09}").glob("state-*-of-00002.npz")
    return [sum(array.nbytes for array in read_arrays(file).values()) for file in files]


@pytest.fixture(scope="module")
def pair(scripts, tmp_path_factory):
    """Returns the workdir of an uninterrupted run with two processes."""
    workdir = tmp_path_factory.mktemp("pair")
    layout = "JAX on 4 x cpu of 2 hosts, weights and optimizer replicated: 4 x 80 images per step"
    _run_pair(scripts, workdir, layout)
    return workdir


def _assert_same_losses(workdir, other):
    for name in ("metrics.csv", "evaluations.csv"):
        ours, theirs = (training.read_metrics(folder / name) for folder in (workdir, other))
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)


def test_losses_of_two_processes_match_one_process(pair, tmp_path):
    small_run.start("workers", tmp_path, strategy="auto")
    _assert_same_losses(pair, tmp_path)


@pytest.mark.slow
def test_resume_of_two_killed_processes_is_bit_exact(pair, scripts, tmp_path):
    killed = _start_pair(scripts, tmp_path, moment="step  7/11")
    assert killed[0].wait().returncode == -signal.SIGKILL
    os.kill(killed[1].pid, signal.SIGKILL)  # do not wait until process 1 times out
    killed[1].wait()
    _run_pair(scripts, tmp_path, "resuming from step 5,")
    assert tables_of(tmp_path) == tables_of(pair)
    assert_same_arrays(*(read_arrays(workdir / "weights.npz") for workdir in (tmp_path, pair)))


def test_losses_of_sharded_and_replicated_runs_match(pair, scripts, tmp_path):
    layout = "JAX on 4 x cpu of 2 hosts, weights and optimizer sharded: 4 x 80 images per step"
    _run_pair(scripts, tmp_path, layout, kind="sharded_workers")
    _assert_same_losses(tmp_path, pair)
    # The state files of the two processes have similar sizes. Together, they contain each array
    # once.
    sizes = _array_bytes(tmp_path)
    assert len(sizes) == 2 and max(sizes) < 1.2 * min(sizes)
    assert sum(sizes) == sum(_array_bytes(pair))
