"""Tests of the learning-rate sweep: its runs, the selected rate, and the command."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import types

import pytest
from ml_collections import ConfigDict, FieldReference

from keras_vit import training
from keras_vit.commands import sweep
from keras_vit.configs import digits
from keras_vit.training.lock import workdir_lock

from ..shared import ROOT


def _rows(accuracies, losses=(1.0, 1.0, 1.0)):
    """Returns the rows and the runs of a sweep over three rates and two seeds."""
    runs = []

    def train(name, changes):
        runs.append((name, changes))
        if name.startswith("rate="):
            return {"test/accuracy": accuracies[len(runs) - 1], "test/loss": losses[len(runs) - 1]}
        return {"test/accuracy": 0.75 + 0.125 * changes["seed"], "test/loss": 0.5}

    held_out = {"data.train_split": "tune_train", "data.test_split": "tune_val"}
    return sweep.make_rows(
        train, rates=(0.1, 0.2, 0.3), seeds=(0, 1), tune_seed=7, held_out=held_out
    ), runs


def test_sweep_selects_the_rate_on_held_out_data():
    rows, runs = _rows([0.5, 0.7, 0.6])
    for _, changes in runs[:3]:
        assert (
            changes["data.train_split"] == "tune_train" and changes["data.test_split"] == "tune_val"
        )
        assert changes["seed"] == 7
    assert runs[3:] == [
        ("final-rate=0.2-seed=0", {"schedule.base": 0.2, "seed": 0}),
        ("final-rate=0.2-seed=1", {"schedule.base": 0.2, "seed": 1}),
    ]
    assert [row["run"] for row in rows] == 3 * ["tune"] + 2 * ["final"]
    assert len({row["name"] for row in rows}) == 5


def test_equal_accuracies_are_ranked_by_loss():
    rows, _ = _rows([0.5, 0.7, 0.7], losses=(0.1, 0.4, 0.3))
    assert rows[-1]["rate"] == 0.3


def test_best_rate_minimizes_the_loss():
    rows = [
        {"rate": rate, "loss": loss, "accuracy": 0.5}
        for rate, loss in ((0.1, 2.0), (0.2, 1.0), (0.3, 3.0))
    ]
    assert sweep.best_rate(rows, "loss") == 0.2


def test_diverged_rate_is_not_selected(tmp_path, capsys):
    def train(name, changes):
        if changes["schedule.base"] == 10:
            return None
        return {"test/accuracy": 0.5, "test/loss": 0.1, "test/error": 0.2}

    written = []
    options = {"seeds": (0,), "tune_seed": 0, "held_out": {}}
    rows = sweep.make_rows(
        train, rates=(10, 0.1), write=lambda rows: written.append(len(rows)), **options
    )
    assert written == [1, 2, 3] and rows[-1]["rate"] == 0.1
    assert sweep.summary(rows)[1].endswith("diverged")
    sweep.write_table(tmp_path, rows)
    assert json.loads((tmp_path / "table.json").read_text())[0]["accuracy"] is None
    with pytest.raises(ValueError, match="diverged at every rate; pass lower --rates"):
        sweep.make_rows(train, rates=(10,), **options)


def test_nearly_equal_rates_have_separate_folders():
    names = []
    train = lambda name, changes: names.append(name) or {"test/accuracy": 0.5, "test/loss": 1}  # noqa: E731
    sweep.make_rows(train, rates=(0.1234567, 0.1234568, 0.1), seeds=(0,), tune_seed=0, held_out={})
    assert names[:3] == ["rate=0.1234567", "rate=0.1234568", "rate=0.1"]


def test_summary_ends_with_mean_and_deviation(tmp_path):
    rows, _ = _rows([0.5, 0.7, 0.6])
    assert (
        sweep.summary(rows)[-1] == "final accuracy 81.25 %, standard deviation 0.088 over 2 seeds"
    )
    assert "deviation" not in sweep.summary(rows[:-1])[-1]
    sweep.write_table(tmp_path, rows)
    assert json.loads((tmp_path / "table.json").read_text()) == rows
    with open(tmp_path / "table.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert [(float(row["accuracy"]), row["name"]) for row in read] == [
        (row["accuracy"], row["name"]) for row in rows
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.csv", "table.json"]


TINY = {
    "total_epochs": 0.0,
    "total_steps": 4,
    "batch_size": 16,
    "model.num_layers": 1,
    "model.hidden_size": 16,
    "model.num_heads": 2,
    "schedule.warmup_steps": 1,
}


@pytest.fixture
def run_sweep(scripts):
    return lambda *arguments: scripts.run("-m", "keras_vit", "sweep", *arguments, cwd=ROOT)


def test_sweep_trains_missing_runs_and_writes_the_table(run_sweep, tmp_path):
    config = digits.get_config()
    config.update_from_flattened_dict(TINY)
    for rate, accuracy in ((0.001, 0.25), (0.01, 0.5)):
        config.update_from_flattened_dict(
            {"schedule.base": rate, "data.train_split": "tune_train", "data.test_split": "tune_val"}
        )
        done = training.Workdir(tmp_path / f"rate={rate}", config.to_dict())
        done.claim()
        done.write_results({"test/accuracy": accuracy, "test/loss": 1.0})
    overrides = [f"--config.{name}={value}" for name, value in TINY.items()]
    done = run_sweep(f"--workdir={tmp_path}", "--rates=0.001,0.01", "--seeds=3", *overrides)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "final-rate=0.01-seed=3" / "results.json").read_text())
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["accuracy"] for row in rows] == [0.25, 0.5, results["test/accuracy"]]
    assert (
        f"run {tmp_path}/final-rate=0.01-seed=3" in done.stdout
        and f"run {tmp_path}/rate" not in done.stdout
    )
    assert done.stdout.count("run    rate      seed  metrics") == 1


def test_changed_sweep_is_not_told_to_pass_change(tmp_path, monkeypatch):
    config = digits.get_config()
    training.Workdir(tmp_path, config.to_dict()).claim()
    (tmp_path / "checkpoints/000000001").mkdir(parents=True)
    (tmp_path / "checkpoints/000000001/finished").write_text("{}")
    monkeypatch.setattr(sweep, "FLAGS", types.SimpleNamespace(config=config))
    with pytest.raises(ValueError, match="seed was 0 and is 1. Choose another workdir. Received"):
        sweep._results(str(tmp_path), {"seed": 1})


@pytest.mark.parametrize(
    "to_all", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["kill", "terminal"]
)
def test_interrupted_sweep_unlocks_its_workdir(to_all, tmp_path):
    """Sends SIGINT only to the sweep, like `kill`, or also to its training process, like Ctrl-C in
    a terminal."""
    changes = {**TINY, "total_steps": 100_000, "log_every_steps": 1, "steps_per_call": 1}
    overrides = [f"--config.{name}={value}" for name, value in changes.items()]
    command = [
        sys.executable,
        "-m",
        "keras_vit",
        "sweep",
        f"--workdir={tmp_path}/sweep",
        "--rates=0.001,0.01",
        *overrides,
    ]
    with open(tmp_path / "stderr", "w+") as errors:
        pipes = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes) as process:
            for line in process.stdout:
                if line.startswith("step "):
                    (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
                    break
            rest = process.stdout.read()  # ends when the last process closes the pipe
        errors.seek(0)
        assert "Traceback" not in errors.read()
    assert process.returncode == training.EXIT_CODE
    lines = rest.splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("stopped by "))
    assert (
        lines[place].startswith("stopped by SIG")
        and "saved; run the same command to resume" in lines[place]
    )
    # No output of another run.
    assert "keras_vit sweep " in lines[place + 1] and len(lines) == place + 2
    # The next run did not start.
    assert [path.name for path in (tmp_path / "sweep").iterdir()] == ["rate=0.001"]
    assert (tmp_path / "sweep" / "rate=0.001" / "lock").read_text() == ""
    with workdir_lock(tmp_path / "sweep" / "rate=0.001"):
        pass


FAKE_RUN = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getppid(), signal.{number})
signal.sigwait([signal.SIGTERM])
{action}
"""


@pytest.mark.parametrize(
    ("action", "number", "code", "line"),
    [
        ("sys.exit(3)", "SIGTERM", 3, ""),  # the run diverges after the signal
        (
            "sys.exit(0)",
            "SIGHUP",
            75,
            "stopped by SIGHUP after runs/x; resume with:\n  keras-vit sweep",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGTERM", 137, ""),
        ("sys.exit(2)", "SIGINT", 2, ""),  # the run itself prints the error
    ],
)
def test_signal_ends_the_sweep_for_any_exit_code_of_a_run(
    action, number, code, line, fake_train, capsys
):
    fake_train(FAKE_RUN.format(action=action, number=number))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        sweep._train("runs/x", {})
    assert ended.value.code == code and signal.getsignal(signal.SIGTERM) == before
    output = capsys.readouterr()
    assert (output.out + output.err).strip() == line


def test_signals_ignored_by_nohup_stay_ignored(fake_train):
    fake_train("import os, signal; os.kill(os.getppid(), signal.SIGHUP)")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        sweep._train("runs/x", {})
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def fake_train(tmp_path, monkeypatch):
    """Returns a function that writes a script. The sweep runs this script instead of its training
    command."""
    monkeypatch.setenv("KERAS_VIT_COMMAND", "keras-vit sweep")
    monkeypatch.setattr(sweep, "FLAGS", {"config": None})
    fake_flags = {
        "get_override_values": lambda flag: {},
        "get_config_filename": lambda flag: "config.py",
    }
    monkeypatch.setattr(sweep, "config_flags", types.SimpleNamespace(**fake_flags))
    monkeypatch.setattr(sweep, "_TRAIN", (sys.executable, str(tmp_path / "train.py")))
    return (tmp_path / "train.py").write_text


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--rates=0.1,high", "error: `rates` must be numbers.*Received: rates=.'0.1', 'high'"),
        (
            "--config.data.name=list",
            "error: This kind of data has no splits tune_train and tune_val; set --tune_train",
        ),
        ("--seeds=1.5", "error: `seeds` must be numbers.*Received: seeds=.'1.5'"),
        (
            "--config=experiments/configs/finetune.py:ViT-B/16",
            "error: The config needs a model, a dataset",
        ),
    ],
)
def test_bad_input_prints_an_error_line(argument, message, run_sweep, tmp_path):
    import re

    done = run_sweep(
        f"--workdir={tmp_path}", *(["--rates=0.1"] if "rates" not in argument else []), argument
    )
    assert done.returncode == 2 and re.search(message, done.stderr.splitlines()[-1]), done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_diverged_run_does_not_end_the_sweep(run_sweep, tmp_path):
    overrides = [f"--config.{name}={value}" for name, value in TINY.items()]
    done = run_sweep(
        f"--workdir={tmp_path}",
        "--rates=1e30,0.001",
        *overrides,
        "--config.schedule.decay=constant",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["rate"] for row in rows] == [1e30, 0.001, 0.001] and rows[0]["accuracy"] is None
    assert "error: Loss or gradients are not finite" in done.stderr


def test_folds_are_summarized(tmp_path):
    accuracy = {"1/3": 0.5, "2/3": 0.75, "3/3": 1.0}

    def train(name, changes):
        return {"test/accuracy": accuracy[changes["data.fold"]], "test/loss": 1.0}

    options = {"seeds": (0,), "tune_seed": 0, "held_out": {}}
    rows = sweep.make_rows(train, rates=(0.1,), folds=3, **options)
    assert [row["name"] for row in rows] == [f"rate=0.1-seed=0-fold={i}-of-3" for i in (1, 2, 3)]
    row = sweep.spread(rows)[0]
    assert (row["mean"], row["deviation"], row["lowest"], row["highest"]) == (0.75, 0.25, 0.5, 1.0)
    assert sweep.summary(rows)[4] == (
        "rate 0.1: mean accuracy 75.00 %, standard deviation 0.25, from accuracy 50.00 % to "
        "accuracy 100.00 % over 3 runs"
    )
    rows.append({**rows[0], "accuracy": math.nan, "loss": math.nan})
    assert sweep.summary(rows)[-2].endswith("over 3 runs, without 1 that diverged")


def test_folds_may_lack_a_metric():
    row = {"run": "fold", "rate": 0.1, "seed": 0, "name": "a", "accuracy": 0.5, "loss": 1.0}
    rows = [row, {**row, "rare": 0.25, "area": math.nan}, {**row, "rare": 0.75, "area": 0.5}]
    runs = {entry["metric"]: entry["runs"] for entry in sweep.spread(rows)}
    assert runs == {"accuracy": 3, "loss": 3, "rare": 2, "area": 1}


def test_a_failed_evaluator_is_no_divergence():
    rows = [
        {"run": "tune", "rate": rate, "seed": 0, "name": "a", "area": area, "loss": 1.0}
        for rate, area in ((0.1, math.nan), (0.2, 0.5))
    ]
    assert sweep.best_rate(rows, "area") == 0.2
    assert "diverged" not in "".join(sweep.summary(rows, "area"))
    with pytest.raises(ValueError, match="No run has a value"):
        sweep.best_rate(rows[:1], "area")


def test_fields_that_follow_from_the_data_are_computed_for_each_fold(monkeypatch):
    config = ConfigDict({"data": {"fold": "", "path": "a"}, "seed": 0})
    length = types.SimpleNamespace(fn=lambda _: len(config.data.fold), args=())
    config.steps = FieldReference(0, op=length)
    monkeypatch.setattr(sweep, "FLAGS", types.SimpleNamespace(config=config))
    changed = sweep.config_with({"data.fold": "1/5", "seed": 3})
    assert (changed.steps, changed.seed, changed.data.fold) == (3, 3, "1/5")
    assert (config.steps, config.seed, config.data.fold) == (0, 0, "")
