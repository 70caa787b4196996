"""Tests of `--tracker` with modules that stand for MLflow and Weights & Biases."""

import os
import signal
import sys
import types

import numpy as np
import pytest

from keras_vit.training import trackers
from keras_vit.training.preemption import Preempted, raise_on_stop_signals


def _module(calls):
    """Returns a module with the functions of both libraries. They append to `calls`."""
    run = types.SimpleNamespace(
        id="new",
        info=types.SimpleNamespace(run_id="new"),
        log=lambda values, step: calls.append((step, values)),
        finish=lambda: calls.append("end"),
    )

    def start(run_id=None, id=None, **_):
        calls.append(f"start {run_id or id}")
        return run

    return types.SimpleNamespace(
        Settings=dict,
        init=start,
        start_run=start,
        active_run=lambda: run,
        log_params=calls.append,
        log_metrics=run.log,
        end_run=run.finish,
    )


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Returns a function that starts a tracker whose library is a given module."""
    (tmp_path / "config.json").write_text('{"seed": 1}')

    def start(name, module, write=print):
        monkeypatch.setitem(sys.modules, name, module)
        return trackers.Tracker(name, types.SimpleNamespace(path=tmp_path), write)

    return start


@pytest.mark.parametrize(
    ("name", "first_calls", "metric"),
    [
        ("mlflow", ["start None", {"seed": 1}], "test/a_b"),  # MLflow refuses "*" in a name
        ("wandb", ["start None"], "test/a*b"),
    ],
)
def test_tracker_continues_its_run(name, first_calls, metric, start):
    calls = []
    for step in (5, 10):
        tracker = start(name, _module(calls))
        tracker.write(step, {"test/a*b": np.float32(0.5)})
        tracker.close()
    first = [*first_calls, (5, {metric: 0.5}), "end"]
    assert calls == [*first, "start new", (10, {metric: 0.5}), "end"]


@pytest.mark.parametrize("broken", ["start_run", "log_metrics", "end_run"])
def test_tracker_that_fails_prints_one_line(broken, start):
    module = _module([])
    delattr(module, broken)
    lines = []
    tracker = start("mlflow", module, lines.append)
    for step in (5, 10):
        tracker.write(step, {"train/loss": 0.5})
    tracker.close()
    assert [line for line in lines if "failed" in line] == lines[-1:]
    assert broken in lines[-1]


def test_stop_signal_during_a_call_of_the_tracker_stops_the_run(start):
    module = _module([])
    module.log_metrics = lambda values, step: os.kill(os.getpid(), signal.SIGTERM)
    tracker = start("mlflow", module)
    with pytest.raises(Preempted, match="SIGTERM"), raise_on_stop_signals("the final evaluation"):
        tracker.write(5, {"test/loss": 0.5})


def test_tracker_must_be_known_and_installed(monkeypatch):
    with pytest.raises(ValueError, match=r"mlflow, wandb.*Received: tracker='tb'"):
        trackers.check("tb")
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install wandb"):
        trackers.check("wandb")
