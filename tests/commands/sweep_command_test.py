"""Tests of the processes that `keras-vit sweep` starts, and of its signals and errors."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from keras_vit import training
from keras_vit.commands import sweep
from keras_vit.configs import digits
from keras_vit.training.diagnosis import Diverged
from keras_vit.training.lock import workdir_lock

from ..shared import ROOT
from .conftest import error_line

TINY = {
    "total_epochs": 0.0,
    "total_steps": 4,
    "batch_size": 16,
    "model.num_layers": 1,
    "model.hidden_size": 16,
    "model.num_heads": 2,
    "schedule.warmup_steps": 1,
}


def _overrides(**changes):
    return [f"--config.{name}={value}" for name, value in {**TINY, **changes}.items()]


def test_sweep_trains_missing_runs_and_writes_the_table(cli, tmp_path):
    config = digits.get_config()
    held_out = {"data.train_split": "tune_train", "data.test_split": "tune_val"}
    for rate, accuracy in ((0.001, 0.25), (0.01, 0.5)):
        config.update_from_flattened_dict({**TINY, **held_out, "schedule.base": rate})
        workdir = training.Workdir(tmp_path / f"rate={rate}", config.to_dict())
        workdir.claim()
        workdir.write_results({"test/accuracy": accuracy, "test/loss": 1.0})
    flags = [f"--workdir={tmp_path}", "--rates=0.001,0.01", "--seeds=3"]
    done = cli("sweep", *flags, *_overrides())
    assert done.returncode == 0, done.stderr
    final = tmp_path / "final-rate=0.01-seed=3"
    assert re.findall("^run (/.*)", done.stdout, re.MULTILINE) == [str(final)]
    results = json.loads((final / "results.json").read_text())
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["accuracy"] for row in rows] == [0.25, 0.5, results["test/accuracy"]]
    assert done.stdout.count("run    rate      seed  metrics") == 1


def _interrupt_sweep(workdir, errors, send_signal):
    """Starts a sweep and sends SIGINT after its first step.

    Returns the exit code and the lines that it prints after the signal.
    """
    command = [sys.executable, "-m", "keras_vit", "sweep"]
    command += [f"--workdir={workdir}", "--rates=0.001,0.01"]
    command += _overrides(total_steps=100_000, log_every_steps=1, steps_per_call=1)
    pipes = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes) as process:
        for line in process.stdout:
            if line.startswith("step "):
                send_signal(process.pid, signal.SIGINT)
                break
        rest = process.stdout.read()  # ends when the last process closes the pipe
    return process.returncode, rest.splitlines()


# `kill` sends the signal only to the sweep. Ctrl-C in a terminal sends it also to its training
# process.
@pytest.mark.parametrize(
    "send_signal",
    [os.kill, pytest.param(os.killpg, marks=pytest.mark.slow)],
    ids=["kill", "terminal"],
)
def test_interrupted_sweep_unlocks_its_workdir(send_signal, tmp_path):
    with open(tmp_path / "stderr", "w+") as errors:
        code, lines = _interrupt_sweep(tmp_path / "sweep", errors, send_signal)
        errors.seek(0)
        assert "Traceback" not in errors.read()
    assert code == training.EXIT_CODE
    # The command to resume is the last line, so the next run did not start.
    *_, stopped, command = lines
    assert re.match("stopped by SIG.*saved; run the same command to resume", stopped)
    assert "keras_vit sweep " in command
    (run,) = (tmp_path / "sweep").iterdir()
    assert run.name == "rate=0.001"
    assert (run / "lock").read_text() == ""
    with workdir_lock(run):
        pass


# A training script that sends a signal to the sweep, waits until the sweep forwards it, and ends.
SIGNALLING_SCRIPT = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getppid(), signal.{signal_name})
signal.sigwait([signal.SIGTERM])
{action}
"""


@pytest.fixture
def train_with(parse, tmp_path, monkeypatch):
    """Returns a function that replaces the training command of the sweep by a Python script."""
    parse(sweep)
    monkeypatch.setenv("KERAS_VIT_COMMAND", "keras-vit sweep")
    monkeypatch.setattr(sweep, "_TRAIN", (sys.executable, str(tmp_path / "train.py")))
    return (tmp_path / "train.py").write_text


@pytest.mark.parametrize(
    ("signal_name", "action", "code", "printed"),
    [
        ("SIGTERM", "sys.exit(3)", 3, ""),
        (
            "SIGHUP",
            "sys.exit(0)",
            75,
            "stopped by SIGHUP after runs/x; resume with:\n  keras-vit sweep\n",
        ),
        ("SIGTERM", "os.kill(os.getpid(), signal.SIGKILL)", 137, ""),
    ],
    ids=["run diverges", "run finishes", "run is killed"],
)
def test_signal_ends_the_sweep_for_any_exit_code_of_a_run(
    signal_name, action, code, printed, train_with, capsys
):
    train_with(SIGNALLING_SCRIPT.format(signal_name=signal_name, action=action))
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        sweep._train("runs/x", {})
    assert ended.value.code == code
    assert signal.getsignal(signal.SIGTERM) == handler
    assert capsys.readouterr() == (printed, "")


def test_signals_ignored_by_nohup_stay_ignored(train_with):
    train_with("import os, signal; os.kill(os.getppid(), signal.SIGHUP)")
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert sweep._train("runs/x", {})
    finally:
        signal.signal(signal.SIGHUP, handler)


def test_diverged_run_does_not_end_the_sweep(train_with):
    train_with(f"raise SystemExit({Diverged.exit_code})")
    assert sweep._train("runs/x", {}) is False


def test_failed_run_ends_the_sweep(train_with):
    train_with("raise SystemExit(2)")
    with pytest.raises(SystemExit, match="2"):
        sweep._train("runs/x", {})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rates=0.1,high"], "`rates` must be numbers.*Received: rates=.'0.1', 'high'"),
        (["--rates=0.1,0"], r"must be positive. Received: rates=\[0.1, 0.0\]"),
        (["--seeds=0,-1"], r"must be 0 or more. Received: seeds=\[0, -1\]"),
        (["--config.schedule.base=0.1"], "does not apply .*Received: schedule.base=0.1"),
        (["--rates=0.1", "--config.data.name=list"], "has no splits tune_train and tune_val"),
        (
            ["--folds=2", "--config.data.name=folder", "--tune_val=test"],
            "do not apply with --folds.*Received: folds=2,.* tune_val='test'",
        ),
    ],
)
def test_rejects_bad_flags(flags, message, cli, tmp_path):
    assert re.search(message, error_line(cli("sweep", f"--workdir={tmp_path}", *flags)))
    assert not list(tmp_path.iterdir())
