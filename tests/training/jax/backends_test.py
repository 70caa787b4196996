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

from ...shared import ROOT
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
    result = small_run.start("alone", workdir, lines.append, **ast.literal_eval(sys.argv[2]))
    print(json.dumps({"lines": lines, "metrics": result.metrics}))
"""


def _on_tensorflow(workdirs, changes):
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    command = [
        sys.executable,
        "-c",
        _ON_TENSORFLOW,
        str(ROOT / "tests" / "training"),
        repr(changes),
        *map(str, workdirs),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[-len(workdirs) :]]


def _on_jax(workdir, changes):
    lines = []
    result = small_run.start("alone", workdir, lines.append, **changes)
    return {"lines": lines, "metrics": result.metrics}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trains with one config on both backends and returns `{name: (workdir, {"lines": ...,
    "metrics": ...})}`.

    "jax" and "tensorflow" are uninterrupted runs. "begun on jax" is a copy of "jax" at step 10 that
    resumes on TensorFlow. "begun on tensorflow" is a copy of "tensorflow" at step 10 that resumes
    on JAX.
    """
    folder = tmp_path_factory.mktemp("runs")
    source = keras_vit.VisionTransformer(classes=7, **_MODEL)
    keras_vit.checkpoints.save(source, folder / "source.npz")
    changes = {**_CHANGES, "weights": str(folder / "source.npz")}
    results = {"jax": _on_jax(folder / "jax", changes)}
    _copy_half(folder, "jax")
    names = ("tensorflow", "begun on jax")
    results |= zip(names, _on_tensorflow([folder / name for name in names], changes))
    _copy_half(folder, "tensorflow")
    results["begun on tensorflow"] = _on_jax(folder / "begun on tensorflow", changes)
    return {name: (folder / name, result) for name, result in results.items()}


def _copy_half(folder, backend):
    shutil.copytree(folder / backend, folder / f"begun on {backend}")
    shutil.rmtree(folder / f"begun on {backend}" / "checkpoints" / "000000020")


def _assert_same_metrics(ours, theirs, rtol=1e-5):
    for name in ("metrics.csv", "evaluations.csv"):
        ours_, theirs_ = (training.read_metrics(workdir / name) for workdir in (ours, theirs))
        assert list(ours_) == list(theirs_) and len(ours_["step"]) > 0
        for column, values in ours_.items():
            # Adam turns the rounding errors of zero gradients into steps. The errors depend on the
            # thread schedule and change the gradient norm by up to 1.4e-4.
            tolerance = 50 * rtol if column == "grad_norm" else rtol
            # Rounding errors can also decide the class of one image, of at least 320.
            atol = 1.01 / 320 if column == "accuracy" else 1e-7
            np.testing.assert_allclose(
                values, theirs_[column], rtol=tolerance, atol=atol, err_msg=f"{name}: {column}"
            )


def _assert_same_weights(ours, theirs):
    """Compares the arrays of the last checkpoints."""
    arrays = [
        _arrays(workdir / "checkpoints" / "000000020" / "state") for workdir in (ours, theirs)
    ]
    assert len(arrays[0]) == len(arrays[1]) > 90
    for name, array in arrays[0].items():
        # In exact arithmetic, key biases have zero gradients. Adam turns the rounding errors into
        # steps.
        atol = 1e-3 if "key/bias" in name else 1e-5
        np.testing.assert_allclose(array, arrays[1][name], atol=atol, rtol=1e-4, err_msg=name)


def _arrays(path):
    with np.load(f"{path}-00000-of-00001.npz", allow_pickle=False) as file:
        return {name: array for name, array in file.items() if "seed" not in name}


def test_twenty_steps_match_tensorflow(runs):
    (ours, our_result), (theirs, their_result) = (
        runs[backend] for backend in ("jax", "tensorflow")
    )
    assert any(
        line.startswith("JAX on 1 x cpu: 1 x 320 images per step") for line in our_result["lines"]
    )
    metrics = training.read_metrics(ours / "metrics.csv")
    assert (metrics["grad_norm"] > 0.2).any() and metrics["loss"][-1] < metrics["loss"][0]
    _assert_same_metrics(ours, theirs)
    _assert_same_weights(ours, theirs)
    loss = their_result["metrics"]["test/loss"]
    assert our_result["metrics"]["test/loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("begun_on", ["tensorflow", "jax"])
def test_workdir_resumes_on_other_backend(begun_on, runs):
    source, _ = runs[begun_on]
    workdir, result = runs[f"begun on {begun_on}"]
    other = "jax" if begun_on == "tensorflow" else "tensorflow"
    expected = (
        f"resuming from step 10, {workdir}/checkpoints/000000010, written on {begun_on}: on "
        f"{other}, "
    )
    assert any(line.startswith(expected) for line in result["lines"]), result["lines"]
    _assert_same_metrics(workdir, source)
    _assert_same_weights(workdir, source)
