"""Tests of resuming on JAX, and of runs with two processes."""

import os
import shutil
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
    _, _, copy = whole
    if moment:
        died = scripts.run(small_run.__file__, "alone", tmp_path, moment)
        assert died.returncode == -9, died.stderr
    else:
        shutil.copytree(copy, tmp_path, dirs_exist_ok=True)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) > step
    assert_resume_is_bit_exact(tmp_path, "alone", step, whole)


@pytest.mark.slow
def test_sigterm_saves_and_next_call_resumes(whole, tmp_path):
    assert_sigterm_saves(tmp_path, whole)


def test_steps_per_call_change_nothing(whole, tmp_path, monkeypatch):
    assert_steps_per_call_change_nothing(tmp_path, whole, monkeypatch)


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


def _assert_same_losses(workdir, other):
    for name in ("metrics.csv", "evaluations.csv"):
        ours, theirs = (training.read_metrics(folder / name) for folder in (workdir, other))
        np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)


def test_losses_of_two_processes_match_one_process(pair, tmp_path):
    small_run.start("workers", tmp_path, write=lambda line: None, strategy="auto")
    _assert_same_losses(pair, tmp_path)
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
    _assert_same_losses(tmp_path, pair)
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
