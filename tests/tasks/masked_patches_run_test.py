"""Tests of training runs with masked patch prediction."""

import numpy as np
import pytest

from ..shared import SIZES
from ..training import small_run

CONFIG = {
    "task": "masked_patches",
    "batch_size": 32,
    "total_steps": 4,
    "steps_per_call": 1,
    "checkpoint_every_steps": 2,
    "eval_every_steps": 0,
    "model": {**SIZES, "patch_size": 2, "dropout": 0.1},
}


def test_resume_on_two_replicas_is_bit_exact(tmp_path):
    lines = []
    write = small_run.writer(tmp_path / "whole", "step 3/4", tmp_path / "stopped", lines.append)
    whole = small_run.start("mirrored", tmp_path / "whole", write, **CONFIG)
    resumed = small_run.start("mirrored", tmp_path / "stopped", lines.append, **CONFIG)
    assert any("2 x 16 images per step" in line for line in lines)
    assert any(line.startswith("resuming from step 2,") for line in lines)
    for name in ("metrics.csv", "evaluations.csv"):
        assert (tmp_path / "stopped" / name).read_text() == (tmp_path / "whole" / name).read_text()
    for ours, theirs in zip(resumed.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (np.array(whole.model.get_layer("mask_patches").mask_embedding) != 0).all()
    # A uniform prediction over the 512 color classes has a loss of log(512).
    assert 0 < whole.metrics["test/loss"] < 1.01 * np.log(512)
    # Every evaluation masks the same patches.
    assert resumed.metrics["test/loss"] == whole.metrics["test/loss"]


def test_nonfinite_loss_error_names_step_and_layer(tmp_path):
    schedule = {"decay": "constant", "base": 1e30}
    with pytest.raises(ValueError, match="not finite at step 2: .* layer.*Received: loss="):
        small_run.start(
            "alone", tmp_path, lambda line: None, **CONFIG, schedule=schedule, ema_decay=0.0
        )
