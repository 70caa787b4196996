"""Tests of custom tasks, one of them with a target kind of its own, on one and two replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_vit
from keras_vit import data, tasks, training
from keras_vit.layers.dropout import current_seeds
from keras_vit.models.any_model import logits_activation_of

from ..training import small_run


class Brightness(tasks.Task):
    """Predicts the mean pixel value of an image. Training adds noise to the image."""

    metrics = ("error",)

    def build_model(self, inputs):
        return keras.Sequential(
            [keras.Input(inputs.image_shape), keras.layers.Flatten(), keras.layers.Dense(1)]
        )

    def losses_and_metrics(self, model, batch, training=False):
        images = (
            batch[0] + 0.1 * keras.random.normal(ops.shape(batch[0]), seed=current_seeds())
            if training
            else batch[0]
        )
        difference = model(images)[:, 0] - ops.mean(batch[0], axis=(1, 2, 3))
        return ops.square(difference), {"error": ops.absolute(difference)}


class Number(data.Target):
    """A number per image, in [0, 1]; -1 means that the image has none."""

    key = "number"
    rule = "at most 1"

    def spec(self):
        return tf.TensorSpec([], tf.float32)

    def decode(self, example):
        number = example["number"]
        return number, tf.cast(number >= 0, tf.float32), number <= 1


def numbers(split, *, scale=1.0):
    """Digits, each with a tenth of its value; nines have no number."""
    digits = data.load_split("digits", split)
    labels = np.where(digits.labels == 9, -10, digits.labels) / 10 * scale
    values = tf.constant(labels, tf.float32)
    read = lambda i: {"image": digits.read(i)["image"], "number": values[i]}  # noqa: E731
    return data.Source(read, digits.num_examples, (), 16, labels=labels, options=digits.options)


class Regression(Brightness):
    """Predicts the number of an image."""

    target = "number"

    def losses_and_metrics(self, model, batch, training=False):
        difference = model(batch[0])[:, 0] - batch[1]
        return ops.square(difference), {"error": ops.absolute(difference)}


@pytest.fixture
def number_kind(monkeypatch):
    monkeypatch.setitem(data.TARGETS, "number", Number)
    monkeypatch.setitem(data.SOURCES, "numbers", numbers)


def _run(kind, workdir, write=lambda line: None, task=Brightness, **changes):
    changes = {"ema_decay": 0.5, "best_metric": "error", **changes}
    config = small_run.config_of(kind, **changes)
    return small_run.start(kind, workdir, write, custom_task=task(config), **changes)


class OneLayer(tasks.Classification):
    """Classifies with another model."""

    def build_model(self, inputs):
        parts = [
            keras_vit.layers.InputPreprocessing(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
        return keras.Sequential([keras.Input(inputs.image_shape), *parts])


def test_model_of_a_custom_task_records_the_loss(tmp_path):
    changes = {
        "loss": "sigmoid",
        "total_steps": 1,
        "eval_every_steps": 0,
        "schedule": {"base": 1e-2},
    }
    config = small_run.config_of(**changes)
    result = small_run.start("alone", tmp_path, lambda line: None, OneLayer(config), **changes)
    assert logits_activation_of(result.model) == "sigmoid"


@pytest.mark.parametrize(
    ("kind", "task", "name"),
    [
        ("alone", Brightness, "digits"),
        ("alone", Regression, "numbers"),
        ("mirrored", Brightness, "digits"),
    ],
)
def test_custom_task_trains_evaluates_and_resumes(kind, task, name, tmp_path, number_kind):
    write = small_run.writer(
        tmp_path / "whole", "after step 5", tmp_path / "stopped", lambda line: None
    )
    fields = {"task": task, "data": data.defaults(name=name, shift=1)}
    whole = _run(kind, tmp_path / "whole", write, **fields)
    assert whole.metrics["test/examples"] == (
        360 if task is Brightness else np.sum(whole.inputs.test.labels >= 0)
    )
    metrics = training.read_metrics(tmp_path / "whole" / "metrics.csv")
    assert list(metrics) == ["step", "loss", "error", "grad_norm", "learning_rate", "bad_examples"]
    assert metrics["error"][-3:].mean() < 0.7 * metrics["error"][1:4].mean()
    assert 0 < whole.metrics["test/error"] < metrics["error"][0]
    assert (
        (tmp_path / "whole" / "evaluations.csv")
        .read_text()
        .startswith("step,loss,error,examples,bad_examples\n5,")
    )
    lines = []
    resumed = _run(kind, tmp_path / "stopped", lines.append, **fields)
    # The checkpoint of step 5 was written before the evaluation.
    assert any(line.startswith("resuming from step 5,") for line in lines)
    assert resumed.metrics["test/error"] == whole.metrics["test/error"]
    for ours, theirs in zip(resumed.model.get_weights(), whole.model.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    for name in ("metrics.csv", "evaluations.csv"):
        assert (tmp_path / "stopped" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_a_target_kind_refuses_what_it_cannot_do(number_kind):
    for field in ("mixup_alpha", "cutmix_alpha", "label_smoothing"):
        with pytest.raises(ValueError, match=f"{field} must not be set.*Received: {field}=0.1"):
            data.from_config({"name": "numbers", field: 0.1}, batch_size=8, seed=0, target="number")
    inputs = data.from_config(
        {"name": "numbers", "scale": 2.0}, batch_size=360, seed=0, target="number"
    )
    next(iter(inputs.eval_batches()))
    with pytest.raises(ValueError, match="must be at most 1. Received: number=1"):
        inputs.bad_examples("test").update(0)
    with pytest.raises(ValueError, match="needs a dataset with classes"):
        data.from_config({"name": "numbers"}, batch_size=8, seed=0)


def test_random_numbers_are_reproducible(tmp_path):
    losses = []
    for name in ("first", "second"):
        _run("alone", tmp_path / name, total_steps=3, checkpoint_every_steps=0, eval_every_steps=0)
        losses.append(training.read_metrics(tmp_path / name / "metrics.csv")["loss"])
    np.testing.assert_array_equal(losses[0], losses[1])
    _run(
        "alone",
        tmp_path / "other",
        total_steps=3,
        checkpoint_every_steps=0,
        eval_every_steps=0,
        seed=1,
    )
    assert (training.read_metrics(tmp_path / "other" / "metrics.csv")["loss"] != losses[0]).all()
