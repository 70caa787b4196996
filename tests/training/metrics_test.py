import os
import signal
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.training import trackers
from keras_vit.training.metrics import (
    MetricsTable,
    MetricWriter,
    Scalars,
    read_metrics,
    write_evaluation,
)
from keras_vit.training.preemption import Preempted, raise_on_stop_signals
from keras_vit.training.progress import Progress

COLUMNS = ("loss", "grad_norm")


def _values(*steps):
    steps = np.array(steps, "float64")
    return {"loss": (1 / steps).astype("float32"), "grad_norm": (steps / 3).astype("float32")}


def test_metrics_round_trip_exactly(tmp_path):
    path = tmp_path / "metrics.csv"
    table = MetricsTable(path, COLUMNS)
    table.append(1, _values(1, 2, 3))
    table.append(4, {"loss": [0.1], "grad_norm": [float("nan")]})
    metrics = read_metrics(path)
    assert list(metrics) == ["step", "loss", "grad_norm"]
    np.testing.assert_array_equal(metrics["step"], [1, 2, 3, 4])
    np.testing.assert_array_equal(metrics["loss"], [*np.float32([1, 1 / 2, 1 / 3]), 0.1])
    assert np.isnan(metrics["grad_norm"][3])
    assert path.read_text().startswith("step,loss,grad_norm\n1,1.0,0.3333333432674408\n")


@pytest.mark.parametrize(
    "end",
    ["", "6,0.1", "6,0.16666667163372,1.0\n", "\0\0\0\0\n2,0.5,0.5\n"],
    ids=["intact", "truncated row", "extra row", "malformed rows"],
)
def test_resumed_run_has_no_duplicate_steps(end, tmp_path):
    path = tmp_path / "metrics.csv"
    MetricsTable(path, COLUMNS).append(1, _values(1, 2, 3, 4, 5))
    path.write_text(path.read_text() + end)
    MetricsTable(path, COLUMNS, step=3).append(4, _values(4, 5, 6))
    whole = tmp_path / "whole.csv"
    MetricsTable(whole, COLUMNS).append(1, _values(1, 2, 3, 4, 5, 6))
    assert path.read_bytes() == whole.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["metrics.csv", "whole.csv"]


@pytest.mark.parametrize("line", ["2,0.5", "1,0.5,0.5", "\u00b2,0.5,0.5"])
def test_malformed_rows_are_dropped(line, tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(f"step,loss,grad_norm\n1,0.5,0.5\n{line}\n3,0.25,0.5\n4,0.25,0.5\n")
    MetricsTable(path, COLUMNS, step=3)
    assert read_metrics(path)["step"].tolist() == [1, 3]


def test_new_run_overwrites_table(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss,grad_norm\n1,0.5,0.5\n")
    MetricsTable(path, COLUMNS)
    assert read_metrics(path)["loss"].shape == (0,)


def test_remote_table_is_written_on_flush():
    """Object stores cannot append to files."""
    path = "ram://run/metrics.csv"
    tf.io.gfile.makedirs("ram://run")
    for step in (0, 2):
        table = MetricsTable(path, COLUMNS, step)
        table.append(step + 1, _values(step + 1))
        table.append(step + 2, _values(step + 2))
        assert len(read_metrics(path)["step"]) == step
        table.flush()
    assert read_metrics(path)["step"].tolist() == [1, 2, 3, 4]


def test_full_disk_raises_a_value_error(tmp_path, file_size_limit):
    table = MetricsTable(tmp_path / "metrics.csv", COLUMNS)
    with file_size_limit(100), pytest.raises(ValueError, match="cannot be written .*Free disk"):
        table.append(1, _values(*range(1, 100)))


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00step", b"step,loss\n1,a\n"])
def test_rejects_missing_or_damaged_table(content, tmp_path):
    path = tmp_path / "metrics.csv"
    if content:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="missing or damaged .*path=.*metrics.csv"):
        read_metrics(path)


def test_rejects_table_with_other_columns(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n1,0.5\n")
    with pytest.raises(ValueError, match="must be step,loss,grad_norm"):
        MetricsTable(path, COLUMNS)
    assert path.read_text() == "step,loss\n1,0.5\n"


def test_evaluation_columns_may_change_and_steps_are_unique(tmp_path):
    path = tmp_path / "evaluations.csv"
    for step in (5, 10, 15):
        write_evaluation(path, step, {"loss": 0.5, "knn/accuracy": 0.25})
    write_evaluation(path, 10, {"knn/accuracy": 0.75, "loss": 0.125})  # the run resumed from step 5
    # The run changed its evaluators.
    write_evaluation(path, 15, {"loss": 0.125, "top1/accuracy": 0.5})
    assert path.read_text().splitlines() == [
        "step,loss,knn/accuracy,top1/accuracy",
        "5,0.5,0.25,nan",
        "10,0.125,0.75,nan",
        "15,0.125,nan,0.5",
    ]


def test_scalars_are_written_to_tensorboard(tmp_path):
    scalars = Scalars(tmp_path)
    scalars.write(5, {"train/loss": 0.25, "train/accuracy": np.float32(0.5)})
    scalars.write(7, {"train/loss": 0.125})
    scalars.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    written = {}
    for record in tf.data.TFRecordDataset(str(file)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            assert value.metadata.plugin_data.plugin_name == "scalars"
            written[value.tag, event.step] = tf.make_ndarray(value.tensor).item()
    assert written == {
        ("train/loss", 5): 0.25,
        ("train/accuracy", 5): 0.5,
        ("train/loss", 7): 0.125,
    }


def _log_line(tmp_path, losses, norms):
    lines = []
    workdir = types.SimpleNamespace(path=tmp_path, tensorboard=tmp_path / "tensorboard")
    columns = {"loss": losses, "grad_norm": norms, "learning_rate": [0.1] * len(losses)}
    progress = Progress(100, batch_size=8, devices=1, write=lines.append)
    counters = types.SimpleNamespace(step=0)
    options = {"log_every_steps": 1, "total_steps": 100, "test_examples": 1}
    writer = MetricWriter(workdir, counters, columns, progress, write=lines.append, **options)
    metrics = {name: np.float32(values) for name, values in columns.items()}
    outputs = types.SimpleNamespace(metrics=metrics, input_wait=0.0, peak_memory=0)
    writer.write_steps(len(losses), outputs, [0] * len(losses))
    writer.close()
    return lines[0]


def test_log_line_leaves_out_skipped_steps(tmp_path):
    line = _log_line(tmp_path, [1.0, np.nan, 9.0, 3.0], [2.0, np.nan, np.inf, 4.0])
    assert "loss 2.0000  grad 3  2 of 4 steps skipped" in line
    assert read_metrics(tmp_path / "metrics.csv")["loss"][2] == 9.0


def test_log_line_of_skipped_steps_only(tmp_path):
    line = _log_line(tmp_path, [np.nan, 1.0], [np.inf, np.inf])
    assert "loss nan  grad inf  2 of 2 steps skipped" in line


class _Run:
    """Stands for the run of MLflow and the run of Weights & Biases."""

    def __init__(self, calls, run_id):
        self.id = run_id
        self.info = types.SimpleNamespace(run_id=run_id)
        self.log = lambda values, step: calls.append((run_id, step, values))
        self.finish = lambda: calls.append((run_id, "end"))


def _fake(name, calls):
    def start(run_id, **_):
        module.run = _Run(calls, run_id or "new")
        return module.run

    module = types.ModuleType(name)
    module.Settings = dict
    module.init = lambda id, **options: start(id, **options)
    module.start_run = start
    module.active_run = lambda: module.run
    module.log_params = lambda config: calls.append(config)
    module.log_metrics = lambda values, step: module.run.log(values, step)
    module.end_run = lambda: module.run.finish()
    return module


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_tracker_continues_its_run(name, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, name, _fake(name, calls))
    (tmp_path / "config.json").write_text('{"seed": 1}')
    workdir = types.SimpleNamespace(path=tmp_path)
    for step in (5, 10):
        tracker = trackers.Tracker(name, workdir, print)
        tracker.write(step, {"train/loss": np.float32(0.5)})
        tracker.close()
    if name == "mlflow":
        assert calls.pop(0) == {"seed": 1}
    assert calls == [
        ("new", 5, {"train/loss": 0.5}),
        ("new", "end"),
        ("new", 10, {"train/loss": 0.5}),
        ("new", "end"),
    ]


@pytest.mark.parametrize("broken", ["start_run", "log_metrics", "end_run"])
def test_tracker_that_fails_prints_one_line(broken, tmp_path, monkeypatch):
    mlflow = _fake("mlflow", [])
    delattr(mlflow, broken)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    (tmp_path / "config.json").write_text("{}")
    lines = []
    tracker = trackers.Tracker("mlflow", types.SimpleNamespace(path=tmp_path), lines.append)
    for step in (5, 10):
        tracker.write(step, {"train/loss": 0.5})
    tracker.close()
    assert "mlflow failed" in lines[-1] and broken in lines[-1]
    assert len(lines) == 1 + (broken != "start_run")


def test_stop_signal_during_a_call_of_the_tracker_stops_the_run(tmp_path, monkeypatch):
    mlflow = _fake("mlflow", [])
    mlflow.log_metrics = lambda values, step: os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    (tmp_path / "config.json").write_text("{}")
    tracker = trackers.Tracker("mlflow", types.SimpleNamespace(path=tmp_path), print)
    with pytest.raises(Preempted, match="SIGTERM"), raise_on_stop_signals("the final evaluation"):
        tracker.write(5, {"test/loss": 0.5})


def test_tracker_must_be_known_and_installed(monkeypatch):
    with pytest.raises(ValueError, match=r"mlflow, wandb.*Received: tracker='tb'"):
        trackers.check("tb")
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install wandb"):
        trackers.check("wandb")
