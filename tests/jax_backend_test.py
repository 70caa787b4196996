"""Runs tests of backend-agnostic code on JAX, and the tests of the JAX engine on four devices."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

TESTS = Path(__file__).parent
# Each tuple of tests runs in its own process.
PARTS = (
    ("layers",),
    ("models", "families/two_towers_test.py"),
    ("checkpoints",),
    (
        "optimizers",
        "training/update_test.py",
        "losses_test.py",
        "tasks/classification_test.py",
        "tasks/distillation_test.py",
    ),
    (
        "training/patch_sizes_test.py",
        "training/freezing_test.py",
        "cost_test.py::test_multiply_accumulates_match_jaxpr",
    ),
    (
        "inspection/attention_test.py::test_attention_scores_select_layers_and_average_heads",
        "inspection/relevance_test.py::test_relevance_matches_finite_differences[wrapped]",
        "inspection/embeddings_test.py::test_position_similarity_excludes_the_class_token",
        "evaluation/evaluators_test.py::test_top1_counts_every_example_once",
        "evaluation/frozen_test.py::test_fewshot_computes_features_once",
    ),
    ("training/jax", "tasks/image_text_test.py"),
)
MARKS = "not slow and not one_backend"
# Compiled programs run for milliseconds, so skip expensive optimizations.
XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# Use four virtual devices. The timeout for collectives is long, because the machine may be busy.
# Do not set JAX_COMPILATION_CACHE_DIR, because cached programs for several CPU devices hang.
FOUR_DEVICES = (
    "--xla_force_host_platform_device_count=4 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=600"
)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="these tests run on JAX already")
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.parametrize("parts", PARTS, ids="+".join)
def test_parts_pass_on_jax(parts):
    flags = XLA_FLAGS
    if "training/jax" in parts:
        flags += f" {FOUR_DEVICES}"
    paths = [str(TESTS / part) for part in parts]
    options = ["-q", "-p", "no:cacheprovider", "-n0", "-m", MARKS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *paths],
        env={**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
