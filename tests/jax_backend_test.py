"""Everything that is pure Keras passes the same tests on JAX."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

TESTS = Path(__file__).parent
# What shares a process.
PURE = (
    ("layers",),
    ("models",),
    ("checkpoints",),
    ("optimizers", "losses_test.py", "tasks/classification_test.py"),
    (
        "inspection/attention_test.py::test_layers_are_counted_from_one_and_heads_are_averaged",
        "inspection/attention_test.py::test_relevance_has_the_gradients_of_finite_differences[wrapped]",
        "inspection/distance_test.py",
        "inspection/embeddings_test.py",
        "evaluation",
    ),
)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="these tests run on JAX already")
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.parametrize("parts", PURE, ids="+".join)
def test_on_jax(parts):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", *(str(TESTS / part) for part in parts)],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
