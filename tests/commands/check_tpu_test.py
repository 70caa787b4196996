"""Tests of `keras-vit check-tpu`."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from ..shared import ROOT
from .conftest import error_line

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("jax") is None,
    reason="jax or libtpu is not installed: pip install -e '.[cpu,aot]'",
)


def _run(*arguments, backend="tensorflow"):
    return subprocess.run(
        [sys.executable, "-m", "keras_vit", "check-tpu", "--config.model.num_layers=1", *arguments],
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology=v3:4x4", "--config.batch_size=48"], "divisible by 32 replicas"),
        (["--output=nowhere/check.json"], "folder of --output must exist"),
        (["--price=nan"], "must be finite"),
    ],
)
def test_rejects_bad_input(arguments, message, cli):
    assert message in error_line(cli("check-tpu", *arguments))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v3:2x2", "v5e:2x2"])
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_small_run_compiles_and_fits(backend, topology, tmp_path):
    ended = _run(
        f"--topology={topology}",
        "--config.steps_per_call=2",
        "--config.precision=mixed_bfloat16",
        f"--output={tmp_path}/check.json",
        "--price=2",
        backend=backend,
    )
    assert ended.returncode == 0, ended.stderr
    assert "compiles and fits" in ended.stdout
    check = json.loads((tmp_path / "check.json").read_text())
    assert check["fits"] and check["compiles"]
    assert (check["backend"], check["topology"]) == (backend, topology)
    assert 0 < check["memory_bytes"] < check["memory_limit_bytes"]
    assert check["flops"] >= check["model_flops"] > 0
    assert check["bytes_accessed"] > 0
    assert check["images_per_second_estimate"] > 0
    assert check["price"] == pytest.approx(2 * check["device_hours_estimate"])


@needs_compiler
@pytest.mark.slow
def test_oversized_run_exits_with_code_1():
    steps = ("--config.total_steps=20", "--config.schedule.warmup_steps=0")
    ended = _run("--topology=v2:2x2", "--config.batch_size=8388608", *steps)
    assert ended.returncode == 1, ended.stderr
    assert "does not fit" in ended.stdout
    assert "images per device fit (batch_size=" in ended.stdout
