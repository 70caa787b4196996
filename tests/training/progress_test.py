import dataclasses
import sys
import types

import numpy as np

from keras_vit import data
from keras_vit.training.engine import process_peak_memory
from keras_vit.training.progress import Progress, data_summary, format_metrics, format_seconds, wrap


def _line(
    metrics,
    devices=1,
    input_wait=0.0,
    total_steps=1000,
    seconds=4.0,
    grad_norm=1.5,
    peak_memory=1.25e9,
):
    lines = []
    times = iter([100.0, 100.0 + seconds])
    progress = Progress(
        total_steps, batch_size=8, devices=devices, write=lines.append, clock=lambda: next(times)
    )
    metrics = {**metrics, "grad_norm": grad_norm, "learning_rate": 0.003}
    progress.report(
        step=200, steps=200, metrics=metrics, input_wait=input_wait, peak_memory=peak_memory
    )
    (line,) = lines
    return line


def test_line_has_metrics_speed_memory_and_time_left():
    assert _line({"loss": 0.25, "accuracy": 0.9876}) == (
        "step  200/1000  loss 0.2500  accuracy  98.8 %  grad 1.5  mem 1.2 GB  400 images/s  0:16 "
        "left"
    )


def test_unknown_memory_is_not_shown():
    assert (
        _line({"loss": 0.25}, peak_memory=0)
        == "step  200/1000  loss 0.2500  grad 1.5  400 images/s  0:16 left"
    )


def test_peak_memory_depends_on_platform(monkeypatch):
    resource = types.SimpleNamespace(
        RUSAGE_SELF=0, getrusage=lambda who: types.SimpleNamespace(ru_maxrss=3)
    )
    for platform, module, peak in (
        ("linux", resource, 3072),
        ("darwin", resource, 3),
        ("win32", None, 0),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setitem(sys.modules, "resource", module)  # None makes the import fail
        assert process_peak_memory() == peak


def test_usual_lines_fit_in_100_columns():
    line = _line(
        {"loss": 0.25, "accuracy": 0.9876}, total_steps=10_000, seconds=0.1, grad_norm=0.00123
    )
    assert len(line) <= 100 and line.endswith("grad 0.0012  mem 1.2 GB  16,000 images/s  0:05 left")


def test_line_has_input_wait_and_speed_per_device():
    assert _line({"distance": 0.5}, devices=4, input_wait=0.4) == (
        "step  200/1000  distance 0.5000  grad 1.5  mem 1.2 GB  waiting for input 10 %  400 "
        "images/s  (100\n"
        "    per device)  0:16 left"
    )
    assert _line({"distance": 0.5}, devices=4, input_wait=0.3) == (
        "step  200/1000  distance 0.5000  grad 1.5  mem 1.2 GB  400 images/s  (100 per device)  "
        "0:16 left"
    )


def test_long_lines_wrap_at_100_characters():
    many = _line({f"metric_{i}": 0.5 for i in range(9)}, devices=4, input_wait=0.4)
    assert (
        max(map(len, many.splitlines())) <= 100
        and many.count("0.5000") == 9
        and many.endswith("0:16 left")
    )
    assert wrap("  model: " + "x=1 " * 40).splitlines()[1].startswith("      x=1")
    path = "/a/long-path" * 10
    # Paths are not split, so users can copy them.
    assert wrap(f"exported to {path}").splitlines()[-1].strip() == path


def test_startup_time_is_printed_once():
    lines = []
    times = iter([12.0, 15.5, 20.0])
    progress = Progress(1000, 8, 1, lines.append, clock=lambda: next(times), start=10.0)
    progress.begin()
    progress.report_first(20)
    progress.report_first(20)
    assert lines == [
        "training began after 5.5 s; the first 20 steps took 4.5 s, including compilation"
    ]


def test_times_and_metrics_are_human_readable():
    assert [format_seconds(s) for s in (0, 59.6, 61, 3599, 3725)] == [
        "0:00",
        "1:00",
        "1:01",
        "59:59",
        "1:02:05",
    ]
    assert (
        format_metrics({"loss": 1 / 3, "top5_accuracy": 0.98765})
        == "loss 0.3333, top5_accuracy 98.77 %"
    )


def test_data_summary_counts_examples():
    labels = np.array([0, 1, 1, 2, 2, 2])
    train = data.arrays(np.zeros((6, 2, 2, 3), np.uint8), labels, ["cat", "dog", "owl"])
    inputs = data.InputPipeline(
        train, data.subset(train, [0, 5]), {}, batch_size=2, seed=0, max_bad_share=0
    )
    assert data_summary(inputs) == "3 classes (cat 1, dog 2, owl 3), 6 training and 2 test images"
    unknown = dataclasses.replace(inputs, train=dataclasses.replace(train, labels=None))
    expected = "3 classes (cat, dog, ...), 6 training and 2 test images"
    assert data_summary(unknown, max_names=2) == expected
