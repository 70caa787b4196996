"""Everything that is pure Keras passes the same tests on JAX, and the engine on JAX its own on four devices."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

TESTS = Path(__file__).parent
# What shares a process.
PARTS = (
    ("layers",),
    ("models",),
    ("checkpoints",),
    ("optimizers", "losses_test.py", "tasks/classification_test.py"),
    ("training/jax",),
)
# For the engine: four virtual devices. What is compiled runs for milliseconds and need not be fast, and much of it is
# compiled in several processes.
FLAGS = (
    "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true"
)
CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="these tests run on JAX already")
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.parametrize("parts", PARTS, ids="+".join)
def test_on_jax(parts, tmp_path):
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    if parts == ("training/jax",):
        environment |= {"XLA_FLAGS": FLAGS, "JAX_COMPILATION_CACHE_DIR": str(tmp_path), **CACHE}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", *(str(TESTS / part) for part in parts)],
        env=environment,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
