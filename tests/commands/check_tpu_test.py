"""Tests of `keras-vit check-tpu`."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from ..shared import ROOT

SMALL = [
    "--config.model.num_layers=1",
    "--config.steps_per_call=2",
    "--config.precision=mixed_bfloat16",
]

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax") is None,
    reason="jax or libtpu is not installed: pip install -e '.[cpu,aot]'",
)


def _run(*arguments, backend="tensorflow"):
    return subprocess.run(
        [sys.executable, "-m", "keras_vit", "check-tpu", *arguments],
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=v3:2"], "error: `topology` must be a name like v2:2x2"),
        (
            ["--topology=v3:4x4", "--config.batch_size=48"],
            "error: `batch_size` must be divisible by 32 replicas",
        ),
        (["--output=nowhere/check.json"], "error: The folder of --output must exist"),
        (["--price=nan"], "error: flag --price=nan: must be finite. Received: nan or inf"),
        (
            ["--config.total_epochs=inf"],
            "error: One of `total_steps` and `total_epochs` must be positive",
        ),
    ],
)
def test_bad_input_prints_an_error_without_traceback(arguments, message, scripts):
    ended = scripts.run("-m", "keras_vit", "check-tpu", *arguments, cwd=ROOT)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.strip().splitlines()[-1].startswith(message)
    assert "Received: " in ended.stderr
    assert "Traceback" not in ended.stderr


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v3:2x2", "v5e:2x2"])
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_small_run_compiles_and_fits(backend, topology, tmp_path):
    ended = _run(
        f"--topology={topology}",
        *SMALL,
        f"--output={tmp_path}/check.json",
        "--price=2",
        backend=backend,
    )
    assert ended.returncode == 0, ended.stderr
    assert "compiles and fits" in ended.stdout
    check = json.loads((tmp_path / "check.json").read_text())
    assert check["fits"]
    assert check["compiles"]
    assert check["backend"] == backend
    assert check["topology"] == topology
    assert 0 < check["memory_bytes"] < check["memory_limit_bytes"]
    assert check["flops"] >= check["model_flops"] > 0
    assert check["bytes_accessed"] > 0
    assert check["step_seconds_estimate"] > 0
    assert check["images_per_second_estimate"] > 0
    assert check["price"] == pytest.approx(2 * check["device_hours_estimate"])


@needs_compiler
@pytest.mark.slow
def test_oversized_run_exits_with_code_1():
    steps = [
        "--config.total_epochs=0",
        "--config.total_steps=20",
        "--config.schedule.warmup_steps=0",
    ]
    ended = _run(
        "--topology=v2:2x2", "--config.batch_size=8388608", "--config.model.num_layers=1", *steps
    )
    assert ended.returncode == 1, ended.stderr
    assert "does not fit" in ended.stdout
    assert "images per device fit (batch_size=" in ended.stdout
