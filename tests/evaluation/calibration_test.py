"""Tests of the evaluator `calibration`, for models with logits and with probabilities."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import evaluation
from keras_vit.evaluation import calibration
from keras_vit.evaluation.collecting import collect, outputs_of
from keras_vit.models.any_model import gives_probabilities, set_logits_activation

from ..shared import randomize_head
from .colors import color_inputs, mean_color_model, small_vit, with_labels


def calibration_of(model, inputs):
    return evaluation.evaluate(model, ["calibration"], inputs)


def average_of_softmaxes(logits):
    softmax = keras.layers.Softmax()
    return keras.layers.Average()([softmax(logits), softmax(logits)])


@pytest.mark.parametrize("activate", [keras.ops.softmax, average_of_softmaxes])
def test_no_second_softmax_is_applied(activate):
    logits_model = mean_color_model()
    inner = keras.Model(logits_model.input, activate(logits_model.output))
    outer = keras.Sequential([keras.Input((8, 8, 3)), inner])
    inputs = color_inputs()
    expected = calibration_of(logits_model, inputs)
    assert calibration_of(outer, inputs) == pytest.approx(expected, abs=1e-6)


def test_other_activations_give_logits():
    model = mean_color_model()
    assert not gives_probabilities(keras.Model(model.input, keras.ops.tanh(model.output)))


def test_log_loss_of_logits_is_unbounded():
    model = mean_color_model()
    far = keras.Model(model.input, -1000.0 * model.output)
    inputs = color_inputs()
    arrays = collect(far, outputs_of, inputs)
    logits = arrays["outputs"].astype("float64")
    labels = arrays["labels"].argmax(1)
    # The log-sum-exp of such large logits is their maximum.
    expected = (logits.max(1) - logits[np.arange(len(labels)), labels]).mean()
    assert expected > 100
    metrics = calibration_of(far, inputs)
    assert metrics["calibration/log_loss"] == pytest.approx(expected, rel=1e-5)


def test_metrics_use_the_stored_or_applied_sigmoid():
    model = randomize_head(small_vit())
    set_logits_activation(model, "sigmoid")
    stored = keras.Sequential([keras.Input((8, 8, 3)), model])
    applied = keras.Model(model.input, keras.ops.sigmoid(model.output))
    inputs = color_inputs()
    arrays = collect(model, outputs_of, inputs)
    labels = arrays["labels"]
    probabilities = 1 / (1 + np.exp(-arrays["outputs"].astype("float64")))
    likelihoods = np.where(labels > 0, probabilities, 1 - probabilities)
    expected = {
        "calibration/log_loss": -np.log(likelihoods).sum(1).mean(),
        "calibration/brier_loss": ((probabilities - labels) ** 2).sum(1).mean(),
        "calibration/expected_calibration_error": calibration.expected_calibration_error(
            probabilities, labels.argmax(1)
        ),
    }
    assert calibration_of(stored, inputs) == pytest.approx(expected)
    assert calibration_of(applied, inputs) == pytest.approx(expected, rel=1e-4)


def test_calibration_error_matches_its_definition():
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05], [0.3, 0.7], [0.45, 0.55]])
    labels = np.array([0, 1, 1, 0])
    expected = (2 * abs(0.95 - 0.5) + abs(0.7 - 1) + abs(0.55 - 0)) / 4
    assert calibration.expected_calibration_error(probabilities, labels) == pytest.approx(expected)
    predicted = probabilities.argmax(1)
    assert calibration.confusion_matrix(labels, predicted, 2).tolist() == [[1, 1], [1, 1]]


def test_rejects_multiple_labels():
    inputs = with_labels(color_inputs(test=8), lambda index: tf.constant([0, 1], tf.int64))
    evaluator = evaluation.get(["calibration"])["calibration"]
    message = "one label.*Received: .*'test' with several labels"
    with pytest.raises(ValueError, match=message):
        evaluator.check(mean_color_model(), inputs)
    with pytest.raises(ValueError, match=message):
        evaluator.evaluate(mean_color_model(), inputs)
