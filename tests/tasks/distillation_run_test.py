"""Tests of training runs that distill a model."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, files, tasks, training

from ..shared import SIZES, assert_same_weights, randomize_head, read_arrays
from ..training import small_run
from .resuming import train_and_resume


def save_teacher(path, seed=1):
    keras.utils.set_random_seed(seed)
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), classes=10, dropout=0.5)
    randomize_head(model).save(path)
    return model


def fields_of(teacher, **changes):
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
    "kind, precision, fields",
    [
        ("mirrored", "float32", {"label_weight": 0.5}),
        ("alone", "mixed_bfloat16", {"loss": "cosine"}),
    ],
)
def test_resume_is_bit_exact_and_refuses_another_teacher(kind, precision, fields, tmp_path):
    changes = {"precision": precision, "distillation": fields, "best_metric": "loss"}

    def train(workdir, write=print):
        # The resumed run finds the teacher in another place.
        return small_run.start(kind, workdir, write, **fields_of(f"{workdir}.keras", **changes))

    save_teacher(tmp_path / "whole.keras")
    teacher = save_teacher(tmp_path / "stopped.keras")
    lines, resumed, _ = train_and_resume(tmp_path, "step 3/4", train)
    # The run has the digest of the teacher, but not its weights, and loads without it.
    facts = files.read_json(tmp_path / "whole/model.json")["weights"]["teacher"]
    assert any(facts["digest"][:12] in line for line in lines)
    (path,) = (tmp_path / "whole/checkpoints/000000004").glob("*.npz")
    size = sum(array.size for name, array in read_arrays(path).items() if "seed" not in name)
    count = resumed.model.count_params()
    # The weights, their averages, two moments of Adam, and counters.
    assert teacher.count_params() > count and 4 * count <= size < 4 * count + 10
    (tmp_path / "stopped.keras").unlink()
    loaded = training.load_checkpoint(tmp_path / "stopped")[0].model
    assert_same_weights(loaded, resumed.model)
    save_teacher(tmp_path / "stopped.keras", seed=2)
    with pytest.raises(ValueError, match="teacher has changed"):
        train(tmp_path / "stopped")


class Copied(tasks.Distillation):
    """The student is a copy of the teacher."""

    def build_model(self, inputs):
        student = super().build_model(inputs)
        student.set_weights(self.frozen_models[0].get_weights())
        return student


def test_copy_of_the_teacher_has_no_loss_and_no_gradients(tmp_path):
    teacher = save_teacher(tmp_path / "teacher.keras")
    fields = fields_of(
        tmp_path / "teacher.keras",
        model=SIZES,
        distillation={"temperature": 3.0},
        schedule={"base": 1e-9},  # rounding would move the student
    )
    task = Copied(small_run.config_of(**fields))
    result = small_run.start("alone", tmp_path / "run", print, task, **fields)
    metrics = training.read_metrics(tmp_path / "run/metrics.csv")
    assert np.abs(metrics["loss"]).max() < 1e-6 and metrics["grad_norm"].max() < 1e-4
    assert (metrics["agreement"] == 1).all() and result.metrics["test/agreement"] == 1
    assert_same_weights(task.frozen_models[0], teacher)


def test_run_without_an_export_is_a_teacher(tmp_path):
    small_run.start("alone", tmp_path / "large", print, total_steps=3)
    lines = []
    fields = fields_of(tmp_path / "large", total_steps=3)
    small_run.start("alone", tmp_path / "small", lines.append, **fields)
    assert any(line.startswith("teacher: ") for line in lines)
