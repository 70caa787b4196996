"""Tests of `experiments/benchmarks/formats.py` on a tiny model, and of the workers' errors."""

import csv

import formats_worker
import numpy as np
import pytest
from workers import is_out_of_memory

from ..shared import ROOT

SCRIPT = "experiments/benchmarks/formats.py"


def test_formats_are_measured(scripts, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_TORCH_PYTHON", "/bin/false")  # makes the script skip timm
    flags = ["--models=test", "--formats=keras,litert_int8,timm", "--rounds=1", "--batch_sizes=1,2"]
    done = scripts.run(SCRIPT, *flags, f"--output={tmp_path / 'formats.csv'}", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "test, timm was not run: the process of timm ended; see its output above" in done.stdout
    with open(tmp_path / "formats.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["format"], row["batch size"]) for row in rows] == [
        (name, size) for name in ("keras", "litert_int8") for size in ("1", "2")
    ]
    for row in rows:
        assert float(row["images/s"]) > 0
        assert float(row["share"]) > 0
        assert float(row["MB of memory"]) > 50
        assert (row["MB of file"] == "") == (row["format"] == "keras")
        assert float(row["difference"]) < (1e-5 if row["format"] == "keras" else 0.2)
        assert float(row["same class"]) > 0.8
        assert "threads" in row["processor"]
        assert "TensorFlow" in row["versions"]


def test_large_batches_repeat_the_images(tmp_path, monkeypatch):
    np.save(tmp_path / "images.npy", np.zeros((16, 2, 2, 3), "float32"))
    np.save(tmp_path / "logits.npy", np.arange(32).reshape(16, 2))
    sizes = []

    def logits(images):
        sizes.append(len(images))
        return np.arange(2 * len(images)).reshape(-1, 2)

    def serve(load):
        _, answer = load()
        for size in (1, 40):
            answer("float32", size)

    monkeypatch.setattr(formats_worker, "serve", serve)
    formats_worker.serve_format(lambda: (logits, "versions"), tmp_path)
    assert sizes == [16, 1, 40]


@pytest.mark.parametrize("flag", ["--formats=keras,litert_int4", "--models=B/17"])
def test_rejects_unknown_names(flag, scripts):
    done = scripts.run(SCRIPT, flag, cwd=ROOT)
    assert done.returncode != 0
    assert f"Received: {flag.split(',')[-1].split('=')[-1]}" in done.stderr + done.stdout


@pytest.mark.parametrize(
    "message, expected",
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_only_too_little_memory_ends_the_search(message, expected):
    assert is_out_of_memory(RuntimeError(message)) == expected
