"""Masked patch prediction as a run on two replicas, that is killed and goes on."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

SPEC = importlib.util.spec_from_file_location("small_run", Path(__file__).parent.parent / "training" / "small_run.py")
small_run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(small_run)

CONFIG = {
    "task": "masked_patches",
    "batch_size": 32,
    "total_steps": 4,
    "steps_per_call": 1,
    "checkpoint_every_steps": 2,
    "eval_every_steps": 0,
    "model": {"patch_size": 2, "num_layers": 1, "hidden_size": 8, "mlp_dim": 12, "num_heads": 2, "dropout": 0.1},
}


def test_on_two_replicas_a_killed_run_ends_as_one_that_was_not(tmp_path):
    whole = small_run.start("mirrored", tmp_path / "whole", lambda line: None, **CONFIG)
    lines = []

    def kill(line):
        lines.append(line)
        if line.startswith("step 3/4"):
            raise KeyError

    with pytest.raises(KeyError):
        small_run.start("mirrored", tmp_path / "killed", kill, **CONFIG)
    resumed = small_run.start("mirrored", tmp_path / "killed", lines.append, **CONFIG)
    assert any("2 x 16 images a step" in line for line in lines)
    assert any(line.startswith("going on from step 2,") for line in lines)
    for name in ("metrics.csv", "evaluations.csv"):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()
    for ours, theirs in zip(resumed.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (np.array(whole.model.get_layer("mask_patches").mask_embedding) != 0).all()
    # Of 512 classes of colors; evaluation is on the same places every time.
    assert 0 < whole.metrics["test/loss"] < 1.01 * np.log(512)
    assert resumed.metrics["test/loss"] == whole.metrics["test/loss"]
