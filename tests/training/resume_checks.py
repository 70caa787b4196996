"""Checks of runs that stop and resume, for the engines of both backends.

`whole` is `(workdir, RunResult, copy of the workdir at an earlier step)` of an uninterrupted run.
"""

import itertools
import os
import signal

import pytest

from keras_vit import training
from keras_vit.training import loop

from ..shared import assert_same_weights, tables_of
from . import small_run


def assert_resume_is_bit_exact(workdir, kind, step, whole):
    """Resumes a run at `step`, and compares the results with those of the uninterrupted run."""
    lines = []
    result = small_run.start(kind, workdir, write=lines.append)
    assert f"resuming from step {step}, {workdir}/checkpoints/00000000{step}" in lines
    expected_workdir, expected, _ = whole
    assert tables_of(workdir) == tables_of(expected_workdir)
    assert (workdir / "metrics.csv").read_text().count("\n") == 1 + small_run.STEPS
    assert_same_weights(result.model, expected.model)
    ours, theirs = (
        {name: value for name, value in run.metrics.items() if "test" in name}
        for run in (result, expected)
    )
    assert ours == theirs


def assert_sigterm_saves(workdir, whole):
    """Stops a run by SIGTERM after step 2, resumes it, and compares its tables."""

    def write(line):
        if line.startswith("step  2/11"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(training.Preempted, match="stopped by SIGTERM after step 2 and saved"):
        small_run.start("alone", workdir, write=write)
    assert (workdir / "checkpoints" / "000000002" / "finished").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    lines = []
    small_run.start("alone", workdir, write=lines.append)
    assert any(line.startswith("resuming from step 2, ") for line in lines)
    assert tables_of(workdir) == tables_of(whole[0])


def assert_steps_per_call_change_nothing(workdir, whole, monkeypatch):
    """Trains with other numbers of steps per call, and compares the results."""
    numbers = itertools.cycle([2, 3, 1])
    monkeypatch.setattr(loop, "_steps_in_time", lambda engine, seconds, steps: next(numbers))
    result = small_run.start("alone", workdir, log_every_steps=100)
    expected_workdir, expected, _ = whole
    assert tables_of(workdir) == tables_of(expected_workdir)
    assert_same_weights(result.model, expected.model)
