"""Training produces nearly equal results on both backends, and a run can resume on the other
backend."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import keras_vit
from keras_vit import training

from ...shared import ROOT, read_arrays
from .. import small_run

_MODEL = {**small_run.MODEL, "dropout": 0.0, "attention_dropout": 0.0, "stochastic_depth": 0.0}
# 20 steps with clipping. `small_run.KINDS["alone"]` adds EMA and two micro-batches.
_CHANGES = {
    "model": _MODEL,
    "total_steps": 20,
    "checkpoint_every_steps": 10,
    "eval_every_steps": 10,
    "clip_norm": 0.2,
    "schedule": {"base": 1e-3, "warmup_steps": 2},
    "strategy": "default",
    "steps_per_call": 5,
}

_ON_TENSORFLOW = """
import ast, json, sys
sys.path.insert(0, sys.argv[1])
import small_run
for workdir in sys.argv[3:]:
    lines = []
    small_run.start("alone", workdir, lines.append, **ast.literal_eval(sys.argv[2]))
    print(json.dumps(lines))
"""


def _on_tensorflow(workdirs, changes):
    """Trains in another process, and returns the lines of the log of each workdir."""
    done = subprocess.run(
        [sys.executable, "-c", _ON_TENSORFLOW, ROOT / "tests/training", repr(changes), *workdirs],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[-len(workdirs) :]]


def _on_jax(workdir, changes):
    lines = []
    small_run.start("alone", workdir, lines.append, **changes)
    return lines


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trains with one config on both backends and returns `{name: (workdir, lines of the log)}`.

    "jax" and "tensorflow" are uninterrupted runs. "begun on jax" is a copy of "jax" at step 10 that
    resumes on TensorFlow. "begun on tensorflow" is a copy of "tensorflow" at step 10 that resumes
    on JAX.
    """
    folder = tmp_path_factory.mktemp("runs")
    source = keras_vit.VisionTransformer(classes=7, **_MODEL)
    keras_vit.checkpoints.save(source, folder / "source.npz")
    changes = {**_CHANGES, "weights": str(folder / "source.npz")}
    lines = {"jax": _on_jax(folder / "jax", changes)}
    _copy_half(folder, "jax")
    names = ("tensorflow", "begun on jax")
    lines |= zip(names, _on_tensorflow([folder / name for name in names], changes))
    _copy_half(folder, "tensorflow")
    lines["begun on tensorflow"] = _on_jax(folder / "begun on tensorflow", changes)
    return {name: (folder / name, lines_of_run) for name, lines_of_run in lines.items()}


def _copy_half(folder, backend):
    shutil.copytree(folder / backend, folder / f"begun on {backend}")
    shutil.rmtree(folder / f"begun on {backend}" / "checkpoints" / "000000020")


def _assert_same_metrics(ours, theirs):
    for name in ("metrics.csv", "evaluations.csv"):
        our_columns, their_columns = (training.read_metrics(run / name) for run in (ours, theirs))
        assert list(our_columns) == list(their_columns) and len(our_columns["step"]) > 0
        for column, values in our_columns.items():
            # Adam turns the rounding errors of zero gradients into steps. The errors depend on the
            # thread schedule and change the gradient norm by up to 1.4e-4.
            rtol = 5e-4 if column == "grad_norm" else 1e-5
            # Rounding errors can also decide the class of one image, of at least 320.
            atol = 1.01 / 320 if column == "accuracy" else 1e-7
            tolerance = {"rtol": rtol, "atol": atol, "err_msg": f"{name}: {column}"}
            np.testing.assert_allclose(values, their_columns[column], **tolerance)


def _assert_same_weights(ours, theirs):
    """Compares the arrays of the last checkpoints."""
    state = "checkpoints/000000020/state-00000-of-00001.npz"
    our_arrays, their_arrays = (read_arrays(workdir / state) for workdir in (ours, theirs))
    assert our_arrays.keys() == their_arrays.keys()
    for name, array in our_arrays.items():
        # In exact arithmetic, key biases have zero gradients. Adam turns the rounding errors into
        # steps.
        atol = 1e-3 if "key/bias" in name else 1e-5
        np.testing.assert_allclose(array, their_arrays[name], atol=atol, rtol=1e-4, err_msg=name)


def test_twenty_steps_match_tensorflow(runs):
    (ours, lines), (theirs, _) = (runs[backend] for backend in ("jax", "tensorflow"))
    assert any(line.startswith("JAX on 1 x cpu: 1 x 320 images per step") for line in lines)
    metrics = training.read_metrics(ours / "metrics.csv")
    assert (metrics["grad_norm"] > 0.2).any() and metrics["loss"][-1] < metrics["loss"][0]
    _assert_same_metrics(ours, theirs)
    _assert_same_weights(ours, theirs)


@pytest.mark.parametrize(("begun_on", "other"), [("tensorflow", "jax"), ("jax", "tensorflow")])
def test_workdir_resumes_on_other_backend(begun_on, other, runs):
    source, _ = runs[begun_on]
    workdir, lines = runs[f"begun on {begun_on}"]
    resumed = f"from step 10, {workdir}/checkpoints/000000010, written on {begun_on}: on {other}, "
    assert any(line.startswith(f"resuming {resumed}") for line in lines), lines
    _assert_same_metrics(workdir, source)
    _assert_same_weights(workdir, source)
