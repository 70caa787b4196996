"""Tests of accuracies, of `evaluate`, and of requests that are refused."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import evaluation
from keras_vit.evaluation import collecting
from keras_vit.evaluation.calibration import Predictions
from keras_vit.evaluation.collecting import collect, outputs_of
from keras_vit.evaluation.multi_label import average_precisions

from .colors import color_inputs, mean_color_model, small_vit, unreadable, with_labels


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.vit = small_vit()

    def call(self, images):
        return self.vit(images)


def test_top1_counts_every_example_once():
    inputs = color_inputs(test=11)
    metrics = evaluation.evaluate(mean_color_model(), ["top1", "average_precision"], inputs)
    assert metrics == {
        "top1/accuracy": 1.0,
        "top1/top5_accuracy": 1.0,
        "average_precision/mean_average_precision": 1.0,
    }
    swapped = mean_color_model()
    swapped.get_layer("head").kernel.assign([[0, 1, 0], [1, 0, 0], [0, 0, 1]])
    # A student without labels, whose run has no labels in its batches, is evaluated with them.
    inputs = dataclasses.replace(inputs, target="none")
    metrics = evaluation.get(["top1"])["top1"].evaluate(swapped, inputs, engine=object())
    assert metrics["accuracy"] == pytest.approx((inputs.test.labels == 2).mean())


def test_balanced_counts_classes_equally(monkeypatch):
    """Labels 0 0 0 1 and predictions 0 0 1 1: recalls 2/3 and 1, F1 scores 4/5 and 2/3."""
    logits = np.array([[2.0, 0, -9], [1, 0, -9], [0, 1, -9], [0, 3, -9]])
    predictions = Predictions(logits, logits, np.array([0, 0, 0, 1]), np.arange(4), False)
    monkeypatch.setattr(evaluation.accuracy, "predict", lambda model, inputs: predictions)
    expected = {
        "balanced_accuracy": 5 / 6,
        "macro_f1": 11 / 15,
        # Each class is compared with the others. A tie counts as half a point.
        "roc_auc": (5 / 6 + 1) / 2,
    }
    assert evaluation.accuracy.balanced(None, None) == pytest.approx(expected)


def test_average_precisions_match_their_definition():
    random = np.random.default_rng(0)
    scores = random.normal(size=(50, 4))
    right = random.random((50, 4)) < 0.2
    right[:, 3] = False  # a class without examples is left out
    expected = []
    for number in range(3):
        hits = right[np.argsort(-scores[:, number]), number]
        precisions = np.cumsum(hits) / np.arange(1, 51)
        expected.append(precisions[hits].mean())
    assert list(average_precisions(scores, right).values()) == pytest.approx(expected)


def test_unlabeled_examples_are_skipped_and_counted(caplog):
    inputs = with_labels(color_inputs(test=5), lambda index: tf.zeros([0], tf.int64))
    with pytest.raises(ValueError, match="Received: 5 examples"):
        evaluation.evaluate(mean_color_model(), ["top1"], inputs)
    assert "skipped 5 of 5 examples: 0 cannot be read, 5 have no label" in caplog.text


def test_images_without_a_class_count_only_in_average_precision(caplog):
    """Only the images with odd indices have a class."""
    inputs = color_inputs(test=12)
    labels = inputs.test.labels
    right = np.eye(3)[labels] * (np.arange(12) % 2)[:, None]
    label_of = tf.constant(labels[:, None])
    inputs = with_labels(inputs, lambda index: label_of[index][: index % 2], empty_is_negative=True)
    model = mean_color_model()
    names = ["top1", "knn", "calibration", "average_precision"]
    metrics = evaluation.evaluate(model, names, inputs)
    assert metrics["top1/accuracy"] == metrics["knn/accuracy"] == 1
    assert metrics["calibration/log_loss"] < 0.1
    scores = collect(model, outputs_of, inputs)["outputs"]
    expected = np.mean(list(average_precisions(scores, right > 0).values()))
    assert metrics["average_precision/mean_average_precision"] == expected < 1
    assert "skipped 6 of 12 examples, which have no correct class" in caplog.text


@pytest.mark.full
def test_bad_images_are_logged_and_bounded(caplog):
    inputs = unreadable(color_inputs(test=20), "test", [3, 7])
    inputs = dataclasses.replace(inputs, max_bad_share=0.05)
    with pytest.raises(ValueError, match="More than 5 % of 20 examples are bad"):
        evaluation.evaluate(mean_color_model(), ["top1"], inputs)
    assert "test: bad example 1, which gets weight 0: example 3" in caplog.text


@pytest.mark.full
def test_evaluators_share_compiled_functions(monkeypatch):
    built = []
    build = collecting._Outputs.__init__

    def record_build(self, *arguments):
        built.append(arguments)
        build(self, *arguments)

    monkeypatch.setattr(collecting._Outputs, "__init__", record_build)
    model = small_vit()
    inputs = color_inputs()
    names = ["top1", "calibration", "knn"]
    together = evaluation.evaluate(model, names, inputs)
    assert len(built) == 3  # one for accuracy, one for outputs and one for features
    apart = {}
    for name in names:
        apart |= evaluation.evaluate(model, [name], inputs)
    assert together == pytest.approx(apart)


@pytest.mark.full
def test_reused_functions_use_the_current_weights():
    model = small_vit()
    inputs = color_inputs()
    with collecting.reuse_compiled():
        before = collect(model, outputs_of, inputs)["outputs"]
        bias = keras.ops.convert_to_numpy(model.head.bias)
        model.head.bias.assign(bias + 1)
        after = collect(model, outputs_of, inputs)["outputs"]
    np.testing.assert_allclose(after, before + 1, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("top2", r"Did you mean top1\?"),
        ("top1,knn", "write --config.evals="),
        ("top1", "needs a dataset, as in top1:digits"),
        ("knn:nothing@/data", "a local copy as knn:nothing@FOLDER"),
        ("top1:@photos", "as in top1:folder@photos"),
        ("real:real.json@nowhere", "`path` must be an existing folder"),
    ],
)
def test_rejects_unknown_evaluators_and_datasets(name, message):
    with pytest.raises(ValueError, match=message):
        evaluation.evaluate(small_vit(), [name])


def test_rejects_subclassed_models():
    with pytest.raises(ValueError, match="must have a known output shape: make it functional"):
        evaluation.evaluate(Subclass(), ["top1"], color_inputs())


def test_rejects_models_with_other_classes():
    with pytest.raises(ValueError, match="each of 4 classes"):
        evaluation.evaluate(small_vit(), ["top1"], color_inputs(classes=4))


@pytest.mark.parametrize("name", ["top1", "knn"])
@pytest.mark.parametrize("target", ["masks", "none"])
def test_rejects_images_without_classes(name, target):
    source = dataclasses.replace(color_inputs().test, class_names=() if target == "none" else "abc")
    inputs = dataclasses.replace(color_inputs(), train=source, test=source, target=target)
    with pytest.raises(ValueError, match=f"classes.*Received: .*target='{target}'"):
        evaluation.evaluate(small_vit(), [name], inputs)


@pytest.mark.parametrize("name", ["top1", "calibration", "average_precision"])
def test_rejects_nan_outputs(name):
    model = mean_color_model()
    model.get_layer("head").bias.assign(np.full(3, np.nan))
    with pytest.raises(ValueError, match="must be finite"):
        evaluation.evaluate(model, [name], color_inputs())
