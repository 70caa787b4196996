"""Tests of the metrics of images with any number of classes."""

import types

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score

import keras_vit
from keras_vit import data, evaluation
from keras_vit.evaluation import checks, collecting, samples
from keras_vit.models.any_model import set_logits_activation

from ..shared import SIZES

NAMES = ("cat", "dog", "indoor")


def _inputs(labels):
    """Returns inputs whose test split has black images with these labels."""
    images = np.zeros([len(labels), 4, 4, 3], np.uint8)
    source = data.arrays(images, np.array(labels), NAMES)
    return types.SimpleNamespace(test=source, target="classes")


def _classifier(activation, logits_activation="softmax"):
    """Returns a model with an activation, or with logits to which an activation must be applied."""
    model = keras_vit.VisionTransformer(
        **SIZES, input_shape=(4, 4, 3), classes=3, classifier_activation=activation
    )
    set_logits_activation(model, logits_activation)
    return model


def test_evaluators_for_one_label_refuse_several():
    with pytest.raises(ValueError, match="requires one label"):
        checks.check_one_label(_inputs([[1, 0, 1]]))


def test_sample_indices_are_those_of_images_with_a_class():
    inputs = _inputs([[0, 0, 0]] * 30 + [[0, 1, 0]] * 2)
    assert samples.sample_indices(inputs, 4).tolist() == [30, 31]


@pytest.mark.parametrize("activation", ["linear", "sigmoid"])
def test_metrics_match_scikit_learn(monkeypatch, activation):
    random = np.random.default_rng(0)
    # The third class has no examples, so all means leave it out.
    labels = random.random([40, 3]) < [0.5, 0.2, 0.0]
    logits = random.normal(size=[40, 3]) + labels - 1
    probabilities = 1 / (1 + np.exp(-logits))
    outputs = logits if activation == "linear" else probabilities
    # The last example cannot be read.
    arrays = {
        "outputs": np.append(outputs, [[9, 9, 9]], 0),
        "labels": np.append(labels, [[0, 0, 1]], 0).astype("float32"),
        "weights": np.append(np.ones(40), 0),
    }
    monkeypatch.setattr(collecting, "collect", lambda *_: arrays)
    evaluator = evaluation.get(["multi_label:0.31"])["multi_label:0.31"]
    metrics = evaluator.evaluate(_classifier(activation, "sigmoid"), _inputs(labels.astype(int)))

    def macro_f1(threshold):
        return f1_score(labels[:, :2], probabilities[:, :2] >= threshold, average="macro")

    cat, dog = (average_precision_score(labels[:, i], logits[:, i]) for i in range(2))
    best = max(np.arange(1, 100) / 100, key=macro_f1)
    expected = {
        "mean_average_precision": (cat + dog) / 2,
        "macro_f1": macro_f1(0.5),
        "best_macro_f1": macro_f1(best),
        "best_threshold": best,
        "macro_f1_at_0.31": macro_f1(0.31),
        "average_precision_cat": cat,
        "average_precision_dog": dog,
    }
    assert metrics == pytest.approx(expected)
    assert set(evaluator.METRICS) == {name for name in expected if not name.startswith("average")}


@pytest.mark.parametrize("activation", ["linear", "softmax"])
def test_metrics_need_independent_probabilities(activation):
    evaluator = evaluation.get(["multi_label"])["multi_label"]
    with pytest.raises(ValueError, match="independent"):
        evaluator.check(_classifier(activation), _inputs([[1, 0, 1]]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("multi_label:0.0", "must be between 0 and 1"),
        ("multi_label:1.5", "must be between 0 and 1"),
        ("multi_label:0.1.5", "cannot load its dataset"),
        ("multi_label:0.3@photos", "cannot load its dataset"),
    ],
)
def test_other_thresholds_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        evaluation.get([name])[name].check(_classifier("sigmoid"))
