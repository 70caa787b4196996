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
from .resuming import train_and_resume


class Brightness(tasks.Task):
    """Predicts the mean pixel value of an image. Training adds noise to the image."""

    metrics = ("error",)

    def build_model(self, inputs):
        layers = [
            keras.Input(inputs.image_shape),
            keras_vit.layers.InputPreprocessing(),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
        return keras.Sequential(layers)

    def losses_and_metrics(self, model, batch, training=False):
        images = batch[0]
        brightness = ops.mean(images, axis=(1, 2, 3))
        if training:
            images += 0.1 * keras.random.normal(ops.shape(images), seed=current_seeds())
        difference = model(images)[:, 0] - brightness
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

    def read(index):
        return {"image": digits.read(index)["image"], "number": values[index]}

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


def train(kind, workdir, write=print, task=Brightness, **changes):
    fields = {"ema_decay": 0.5, "best_metric": "error", **changes}
    custom_task = task(small_run.config_of(kind, **fields))
    return small_run.start(kind, workdir, write, custom_task, **fields)


def test_model_of_a_custom_task_records_the_loss():
    config = small_run.config_of(loss="sigmoid")
    inputs = data.from_config(config.data, batch_size=8, seed=0)
    assert logits_activation_of(Brightness(config).make_model(inputs)) == "sigmoid"


@pytest.mark.parametrize(
    "kind, task, name", [("alone", Regression, "numbers"), ("mirrored", Brightness, "digits")]
)
def test_custom_task_trains_evaluates_and_resumes(kind, task, name, tmp_path, number_kind):
    def train_task(workdir, write):
        return train(kind, workdir, write, task, data=data.defaults(name=name, shift=1))

    # The checkpoint of step 5 is written before the evaluation.
    _, resumed, whole = train_and_resume(tmp_path, "after step 5", train_task)
    assert resumed.metrics["test/error"] == whole.metrics["test/error"]
    labels = whole.inputs.test.labels
    assert whole.metrics["test/examples"] == (labels >= 0).sum()
    metrics = training.read_metrics(tmp_path / "whole" / "metrics.csv")
    assert list(metrics) == ["step", "loss", "error", "grad_norm", "learning_rate", "bad_examples"]
    assert metrics["error"][-3:].mean() < 0.7 * metrics["error"][1:4].mean()
    assert 0 < whole.metrics["test/error"] < metrics["error"][0]
    evaluations = (tmp_path / "whole" / "evaluations.csv").read_text()
    assert evaluations.startswith("step,loss,error,examples,bad_examples\n5,")


def load_numbers(target="number", **fields):
    config = {"name": "numbers", **fields}
    return data.from_config(config, batch_size=360, seed=0, target=target)


@pytest.mark.parametrize("field", ["mixup_alpha", "cutmix_alpha", "label_smoothing"])
def test_target_kind_without_classes_refuses_mixtures(field, number_kind):
    with pytest.raises(ValueError, match=f"{field} must not be set.*Received: {field}=0.1"):
        load_numbers(**{field: 0.1})


def test_invalid_target_is_reported_with_the_rule_of_its_kind(number_kind):
    inputs = load_numbers(scale=2.0)
    next(iter(inputs.eval_batches()))
    with pytest.raises(ValueError, match="must be at most 1. Received: number=1"):
        inputs.bad_examples("test").update(0)


def test_source_without_classes_is_refused_for_classes(number_kind):
    with pytest.raises(ValueError, match="needs a dataset with classes"):
        load_numbers(target="classes")


def test_random_numbers_depend_on_the_seed(tmp_path):
    def losses_of(name, seed):
        fields = {"total_steps": 3, "checkpoint_every_steps": 0, "eval_every_steps": 0}
        train("alone", tmp_path / name, seed=seed, **fields)
        return training.read_metrics(tmp_path / name / "metrics.csv")["loss"]

    first = losses_of("first", seed=0)
    np.testing.assert_array_equal(losses_of("again", seed=0), first)
    assert (losses_of("other", seed=1) != first).all()
