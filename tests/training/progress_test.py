"""Tests of the log lines of training, and of the measured memory and numbers that they contain."""

import dataclasses
import functools
import sys
import types

import numpy as np
import pytest

from keras_vit import data
from keras_vit.training.memory import process_peak_memory
from keras_vit.training.progress import Progress, data_summary, format_metrics, format_seconds, wrap


def _line(metrics, devices=1, input_wait=0.0, peak_memory=1.25e9):
    """Returns the log line of step 200, if these steps of 8 images took 0.5 seconds."""
    lines = []
    clock = functools.partial(next, iter([100.0, 100.5]))
    progress = Progress(1000, 8, devices, write=lines.append, clock=clock)
    metrics = {"grad_norm": 0.00123, **metrics, "learning_rate": 0.003}
    progress.report(200, 200, metrics, input_wait=input_wait, peak_memory=peak_memory)
    (line,) = lines
    return line


def test_line_has_metrics_speed_memory_and_time_left():
    assert _line({"loss": 0.25, "accuracy": 0.9876}) == (
        "step  200/1000  loss 0.2500  accuracy  98.8 %  grad 0.0012  mem 1.2 GB  3,200 images/s  "
        "0:02 left"
    )
    assert " mem " not in _line({"loss": 0.25}, peak_memory=0)


RESOURCE = types.SimpleNamespace(
    RUSAGE_SELF=0, getrusage=lambda who: types.SimpleNamespace(ru_maxrss=3)
)


@pytest.mark.parametrize(
    ("platform", "resource", "peak"),
    [
        ("linux", RESOURCE, 3072),
        ("darwin", RESOURCE, 3),
        ("win32", None, 0),  # the import fails, so the memory is unknown
    ],
)
def test_peak_memory_depends_on_platform(platform, resource, peak, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setitem(sys.modules, "resource", resource)
    assert process_peak_memory() == peak


def test_line_has_input_wait_and_speed_per_device():
    line = _line({"loss": 0.5}, devices=4, input_wait=0.05, peak_memory=0)
    assert "waiting for input 10 %  3,200 images/s  (800 per device)" in line
    assert "waiting" not in _line({"loss": 0.5}, devices=4, input_wait=0.04)


def test_long_lines_wrap_at_100_characters():
    line = _line({f"metric_{i}": 0.5 for i in range(9)}, devices=4, input_wait=0.05)
    assert max(map(len, line.splitlines())) <= 100
    assert line.count("0.5000") == 9 and line.endswith("0:02 left")
    assert wrap("  model: " + "x=1 " * 40).splitlines()[1].startswith("      x=1")


def test_paths_are_not_split():
    path = "/a/long-path" * 10
    assert wrap(f"exported to {path}").splitlines()[-1].strip() == path


def test_startup_time_is_printed_once():
    lines = []
    clock = functools.partial(next, iter([12.0, 15.5, 20.0]))
    progress = Progress(1000, 8, 1, lines.append, clock=clock, start=10.0)
    progress.begin()
    progress.report_first(20)
    progress.report_first(20)
    (line,) = lines
    assert line.startswith("training began after 5.5 s; the first 20 steps took 4.5 s")


def test_times_and_metrics_are_human_readable():
    times = [format_seconds(seconds) for seconds in (0, 59.6, 3599, 3725)]
    assert times == ["0:00", "1:00", "59:59", "1:02:05"]
    metrics = format_metrics({"loss": 1 / 3, "top5_accuracy": 0.98765})
    assert metrics == "loss 0.3333, top5_accuracy 98.77 %"


def test_data_summary_counts_examples():
    labels = np.array([0, 1, 1, 2, 2, 2])
    train = data.arrays(np.zeros((6, 2, 2, 3), np.uint8), labels, ["cat", "dog", "owl"])
    test = data.subset(train, [0, 5])
    inputs = data.InputPipeline(train, test, {}, batch_size=2, seed=0, max_bad_share=0)
    assert data_summary(inputs) == "3 classes (cat 1, dog 2, owl 3), 6 training and 2 test images"
    unknown = dataclasses.replace(inputs, train=dataclasses.replace(train, labels=None))
    expected = "3 classes (cat, dog, ...), 6 training and 2 test images"
    assert data_summary(unknown, max_names=2) == expected
