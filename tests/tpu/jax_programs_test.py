"""Tests of the compile errors and costs of JAX programs, in a child process with the JAX
backend."""

import os
import subprocess
import sys

from ..shared import ROOT


def test_jax_compile_errors_and_costs(tpu_compiler, tmp_path):
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        # JAX would store every program in this folder.
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("TPU_WORKER_HOSTNAMES", None)
    done = subprocess.run(
        [sys.executable, ROOT / "tests/tpu/compile_jax.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "all checks passed\n", done.stderr
    assert "compilation cache" not in done.stderr
    assert not list(tmp_path.iterdir())
