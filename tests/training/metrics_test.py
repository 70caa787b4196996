"""Tests of the tables, scalars and log lines that `MetricWriter` writes."""

import shutil
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.training.metrics import (
    MetricsTable,
    MetricWriter,
    Scalars,
    read_metrics,
    write_evaluation,
)
from keras_vit.training.progress import Progress

COLUMNS = ("loss", "grad_norm")
TWO_ROWS = "step,loss,grad_norm\n1,0.5,0.5\n2,0.25,0.5\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.csv"


def _values(*steps):
    """Returns values of some steps that are not exact in decimals."""
    return {name: np.array(steps, "float32") / 3 for name in COLUMNS}


def test_metrics_round_trip_exactly(path):
    table = MetricsTable(path, COLUMNS)
    table.append(1, _values(1, 2))
    table.append(3, {"loss": [0.1], "grad_norm": [float("nan")]})
    metrics = read_metrics(path)
    assert list(metrics) == ["step", "loss", "grad_norm"]
    np.testing.assert_array_equal(metrics["step"], [1, 2, 3])
    np.testing.assert_array_equal(metrics["loss"], [*_values(1, 2)["loss"], 0.1])
    assert np.isnan(metrics["grad_norm"][2])


@pytest.mark.parametrize(
    "end",
    ["4,0.5,0.5\n", "1,0.1,0.1\n", "3,0.5\n", "\u00b2,0.5,0.5\n", "\0\0\n", "3,0.5,0.5"],
    ids=["later step", "repeated step", "short row", "superscript", "zeros", "incomplete row"],
)
def test_resumed_run_drops_later_and_malformed_rows(end, path):
    path.write_text(TWO_ROWS + end)
    MetricsTable(path, COLUMNS, step=3)
    assert path.read_text() == TWO_ROWS
    assert list(path.parent.iterdir()) == [path]


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


def test_full_disk_raises_a_value_error(path, file_size_limit):
    table = MetricsTable(path, COLUMNS)
    with file_size_limit(100), pytest.raises(ValueError, match="cannot be written .*Free disk"):
        table.append(1, _values(*range(1, 100)))


@pytest.mark.parametrize("content", [None, b"step,loss\n1,a\n"])
def test_rejects_missing_or_damaged_table(content, path):
    if content:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="missing or damaged .*path=.*metrics.csv"):
        read_metrics(path)


def test_rejects_table_with_other_columns(path):
    path.write_text("step,loss\n1,0.5\n")
    with pytest.raises(ValueError, match="must be step,loss,grad_norm"):
        MetricsTable(path, COLUMNS)
    assert path.read_text() == "step,loss\n1,0.5\n"


def test_evaluation_columns_may_change_and_steps_are_unique(path):
    for step in (5, 10, 15):
        write_evaluation(path, step, {"loss": 0.5, "knn/accuracy": 0.25})
    write_evaluation(path, 10, {"knn/accuracy": 0.75, "loss": 0.125})  # the run resumed from step 5
    # The run changed its evaluators.
    write_evaluation(path, 12, {"loss": 0.125, "top1/accuracy": 0.5})
    assert path.read_text().splitlines() == [
        "step,loss,knn/accuracy,top1/accuracy",
        "5,0.5,0.25,nan",
        "10,0.125,0.75,nan",
        "12,0.125,nan,0.5",
    ]


def test_scalars_are_written_to_tensorboard(tmp_path):
    scalars = Scalars(tmp_path)
    scalars.write(5, {"train/loss": 0.25, "train/accuracy": np.float32(0.5)})
    scalars.write(7, {"train/loss": 0.125})
    scalars.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    written = []
    for record in tf.data.TFRecordDataset(str(file)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            assert value.metadata.plugin_data.plugin_name == "scalars"
            written.append((event.step, value.tag, tf.make_ndarray(value.tensor).item()))
    assert written == [
        (5, "train/loss", 0.25),
        (5, "train/accuracy", 0.5),
        (7, "train/loss", 0.125),
    ]


def _writer(folder, step, columns, lines):
    """Returns the writer of a run of 240 steps that continues after `step`."""
    return MetricWriter(
        types.SimpleNamespace(path=folder, tensorboard=folder / "tensorboard", is_chief=True),
        step,
        columns,
        Progress(240, batch_size=8, devices=1, write=lines.append),
        log_every_steps=1,
        test_examples=360,
    )


@pytest.mark.parametrize(
    ("losses", "norms", "expected"),
    [
        ([1, np.nan, 9, 3], [2, np.nan, np.inf, 4], "loss 2.0000  grad 3  2 of 4 steps skipped"),
        ([np.nan, 1], [np.inf, np.inf], "loss nan  grad inf  2 of 2 steps skipped"),
    ],
    ids=["some", "all"],
)
def test_log_line_leaves_out_skipped_steps(losses, norms, expected, path):
    columns = {"loss": losses, "grad_norm": norms, "learning_rate": [0.1] * len(losses)}
    metrics = {name: np.float32(values) for name, values in columns.items()}
    lines = []
    writer = _writer(path.parent, 0, columns, lines)
    outputs = types.SimpleNamespace(metrics=metrics, input_wait=0.0, peak_memory=0)
    writer.write_steps(len(losses), outputs, bad_counts=[0] * len(losses))
    writer.close()
    assert expected in lines[0]
    np.testing.assert_array_equal(read_metrics(path)["loss"], losses)


def test_line_after_an_evaluation_reads_steps_before_resume(tmp_path):
    curves = Path(__file__).parent / "curves"
    for table in ("metrics", "evaluations"):
        shutil.copy(curves / f"short_{table}.csv", tmp_path / f"{table}.csv")
    lines = []
    columns = ("loss", "accuracy", "grad_norm", "learning_rate")
    writer = _writer(tmp_path, 240, columns, lines)
    metrics = read_metrics(tmp_path / "evaluations.csv")
    writer.write_evaluation(240, {name: values[-1] for name, values in metrics.items()})
    writer.close()
    assert lines[1].startswith("  still falling: ")
