"""Tests of a custom task on one and two replicas."""

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit import tasks, training
from keras_vit.layers.dropout import current_seeds
from keras_vit.models.any_model import logits_activation_of

SPEC = importlib.util.spec_from_file_location("small_run", Path(__file__).parent.parent / "training" / "small_run.py")
small_run = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(small_run)


class Brightness(tasks.Task):
    """Predicts the mean pixel value of an image. Training adds noise to the image."""

    metrics = ("error",)

    def build_model(self, inputs):
        return keras.Sequential([keras.Input(inputs.image_shape), keras.layers.Flatten(), keras.layers.Dense(1)])

    def losses_and_metrics(self, model, batch, training=False):
        images = (
            batch[0] + 0.1 * keras.random.normal(ops.shape(batch[0]), seed=current_seeds()) if training else batch[0]
        )
        difference = model(images)[:, 0] - ops.mean(batch[0], axis=(1, 2, 3))
        return ops.square(difference), {"error": ops.absolute(difference)}


def _run(kind, workdir, write=lambda line: None, **changes):
    config = small_run.config_of(kind, ema_decay=0.5, best_metric="error", **changes)
    return small_run.start(
        kind, workdir, write, custom_task=Brightness(config), ema_decay=0.5, best_metric="error", **changes
    )


class OneLayer(tasks.Classification):
    """Classifies with another model."""

    def build_model(self, inputs):
        parts = [keras_vit.layers.InputPreprocessing(), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input(inputs.image_shape), *parts])


def test_model_of_a_custom_task_records_the_loss(tmp_path):
    changes = {"loss": "sigmoid", "total_steps": 1, "eval_every_steps": 0, "schedule": {"base": 1e-2}}
    config = small_run.config_of(**changes)
    result = small_run.start("alone", tmp_path, lambda line: None, OneLayer(config), **changes)
    assert logits_activation_of(result.model) == "sigmoid"


@pytest.mark.parametrize("kind", ["alone", pytest.param("mirrored", marks=pytest.mark.full)])
def test_custom_task_trains_evaluates_and_resumes(kind, tmp_path):
    write = small_run.writer(tmp_path / "whole", "after step 5", tmp_path / "stopped", lambda line: None)
    whole = _run(kind, tmp_path / "whole", write)
    metrics = training.read_metrics(tmp_path / "whole" / "metrics.csv")
    assert list(metrics) == ["step", "loss", "error", "grad_norm", "learning_rate", "bad_examples"]
    assert metrics["error"][-3:].mean() < 0.7 * metrics["error"][1:4].mean()
    assert 0 < whole.metrics["test/error"] < metrics["error"][0]
    assert (tmp_path / "whole" / "evaluations.csv").read_text().startswith("step,loss,error,examples,bad_examples\n5,")
    lines = []
    resumed = _run(kind, tmp_path / "stopped", lines.append)
    # The checkpoint of step 5 was written before the evaluation.
    assert any(line.startswith("resuming from step 5,") for line in lines)
    assert resumed.metrics["test/error"] == whole.metrics["test/error"]
    for ours, theirs in zip(resumed.model.get_weights(), whole.model.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    for name in ("metrics.csv", "evaluations.csv"):
        assert (tmp_path / "stopped" / name).read_text() == (tmp_path / "whole" / name).read_text()


@pytest.mark.full
def test_random_numbers_are_reproducible(tmp_path):
    losses = []
    for name in ("first", "second"):
        _run("alone", tmp_path / name, total_steps=3, checkpoint_every_steps=0, eval_every_steps=0)
        losses.append(training.read_metrics(tmp_path / name / "metrics.csv")["loss"])
    np.testing.assert_array_equal(losses[0], losses[1])
    _run("alone", tmp_path / "other", total_steps=3, checkpoint_every_steps=0, eval_every_steps=0, seed=1)
    assert (training.read_metrics(tmp_path / "other" / "metrics.csv")["loss"] != losses[0]).all()
