"""Compiles the steps of a distillation for a TPU."""

import pytest

from keras_vit import VisionTransformer

from .conftest import TINY_MODEL


def test_memory_counts_the_teacher(tiny, tpu_compiler, tmp_path):
    teacher = VisionTransformer(**{**TINY_MODEL, "num_layers": 2}, classes=10)
    teacher.save(tmp_path / "teacher.keras")
    changes = {"teacher": str(tmp_path / "teacher.keras"), "distillation": {"labels": False}}
    with_teacher = tiny.check("v5e:2x2", task="distillation", best_metric="agreement", **changes)
    without_teacher = tiny.check("v5e:2x2")
    assert with_teacher.fits
    assert not with_teacher.error
    weights = 4 * teacher.count_params()
    added = with_teacher.state_bytes - without_teacher.state_bytes
    assert added == pytest.approx(weights, rel=0.1)
    for step in ("train", "evaluation"):
        sizes = [getattr(result, step).argument_bytes for result in (with_teacher, without_teacher)]
        assert sizes[0] - sizes[1] > 0.9 * weights
