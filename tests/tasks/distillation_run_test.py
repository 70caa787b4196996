"""Tests of training runs that distill a model."""

import importlib.util
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, files, tasks, training

from ..shared import SIZES

SPEC = importlib.util.spec_from_file_location(
    "small_run", Path(__file__).parent.parent / "training" / "small_run.py"
)
small_run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(small_run)


def teacher_of(path, seed=1):
    keras.utils.set_random_seed(seed)
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), classes=10, dropout=0.5)
    model.head.kernel.assign(np.random.default_rng(0).normal(size=(8, 10)))
    model.save(path)
    return model


def config_of(teacher, **changes):
    return {
        "task": "distillation",
        "teacher": str(teacher),
        "model": {**SIZES, "hidden_size": 6, "dropout": 0.1},
        "data": data.defaults(name="digits", mixup_alpha=0.5),
        "batch_size": 32,
        "total_steps": 4,
        "checkpoint_every_steps": 2,
        "eval_every_steps": 0,
        "ema_decay": 0.5,
        "steps_per_call": 1,
        **changes,
    }


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("mirrored", {"distillation": {"label_weight": 0.5}}),
        ("alone", {"precision": "mixed_bfloat16", "distillation": {"loss": "cosine"}}),
    ],
)
def test_resume_is_bit_exact_and_refuses_another_teacher(kind, changes, tmp_path):
    teacher = teacher_of(tmp_path / "teacher.keras")
    if "precision" in changes:
        changes = {**changes, "best_metric": "loss"}
    config = config_of(tmp_path / "teacher.keras", **changes)
    write = small_run.writer(tmp_path / "whole", "step 3/4", tmp_path / "stopped", print)
    whole = small_run.start(kind, tmp_path / "whole", write, **config)
    # The teacher moves, and then another one takes its place.
    shutil.move(tmp_path / "teacher.keras", tmp_path / "moved.keras")
    teacher_of(tmp_path / "teacher.keras", seed=2)
    with pytest.raises(ValueError, match="teacher has changed"):
        small_run.start(kind, tmp_path / "stopped", print, **config)
    lines = []
    config["teacher"] = str(tmp_path / "moved.keras")
    resumed = small_run.start(kind, tmp_path / "stopped", lines.append, **config)
    assert any(line.startswith("resuming from step 2,") for line in lines)
    for ours, theirs in zip(resumed.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (tmp_path / "stopped/metrics.csv").read_text() == (
        tmp_path / "whole/metrics.csv"
    ).read_text()
    # The run has the digest of the teacher, but not its weights, and loads without it.
    facts = files.read_json(tmp_path / "whole/model.json")["weights"]["teacher"]
    assert any(facts["digest"][:12] in line for line in lines)
    with np.load(next((tmp_path / "whole/checkpoints/000000004").glob("*.npz"))) as state:
        sizes = sum(state[name].size for name in state.files if "seed" not in name)
    count = resumed.model.count_params()
    assert teacher.count_params() > count and 4 * count <= sizes < 4 * count + 10
    (tmp_path / "moved.keras").unlink()
    loaded = training.load_checkpoint(tmp_path / "stopped")[0].model
    np.testing.assert_array_equal(loaded.get_weights()[0], resumed.model.get_weights()[0])


class Copied(tasks.Distillation):
    """The student is a copy of the teacher."""

    def build_model(self, inputs):
        student = super().build_model(inputs)
        student.set_weights(self.frozen_models[0].get_weights())
        return student


def test_copy_of_the_teacher_has_no_loss_and_no_gradients(tmp_path):
    teacher = teacher_of(tmp_path / "teacher.keras")
    changes = config_of(
        tmp_path / "teacher.keras",
        model=SIZES,
        distillation={"temperature": 3.0},
        schedule={"base": 1e-9},  # rounding would move the student
    )
    task = Copied(small_run.config_of(**changes))
    result = small_run.start("alone", tmp_path / "run", print, task, **changes)
    metrics = training.read_metrics(tmp_path / "run/metrics.csv")
    assert np.abs(metrics["loss"]).max() < 1e-6 and metrics["grad_norm"].max() < 1e-4
    assert (metrics["agreement"] == 1).all() and result.metrics["test/agreement"] == 1
    for now, before in zip(task.frozen_models[0].get_weights(), teacher.get_weights()):
        np.testing.assert_array_equal(now, before)


def test_run_without_an_export_is_a_teacher(tmp_path):
    small_run.start("alone", tmp_path / "large", print, total_steps=3)
    config = config_of(tmp_path / "large", total_steps=3)
    lines = []
    small_run.start("alone", tmp_path / "small", lines.append, **config)
    assert any(line.startswith("teacher: ") for line in lines)
