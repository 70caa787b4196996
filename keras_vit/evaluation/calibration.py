"""Measures the calibration of classifiers: the agreement between their confidence and accuracy."""

import typing

import numpy as np
from scipy.special import log_expit, log_softmax, logit

from keras_vit.evaluation.checks import (
    check_classes,
    check_one_label,
    refuse_several_labels,
    with_class,
)
from keras_vit.evaluation.collecting import collect, outputs_of
from keras_vit.models.any_model import gives_probabilities, last_activation_of, logits_activation_of


class Predictions(typing.NamedTuple):
    """Predictions for the readable test examples with a class.

    Attributes:
        outputs: logits or probabilities, float64 `(N, classes)`; logits if `is_sigmoid`.
        log_probabilities: float64 `(N, classes)`.
        labels: class of each example, int64 `(N,)`.
        indices: index of each example in the test split, int64 `(N,)`.
        is_sigmoid: whether each class has its own probability, the sigmoid of its logit.
    """

    outputs: np.ndarray
    log_probabilities: np.ndarray
    labels: np.ndarray
    indices: np.ndarray
    is_sigmoid: bool


def check_calibration(model, inputs):
    """Raises a `ValueError` unless the model is a classifier and each example has one label."""
    check_classes(model, inputs)
    check_one_label(inputs)


def calibration(model, inputs, engine=None):
    """Computes the expected calibration error, the log loss in nats, and the Brier loss."""
    predictions = predict(model, inputs)
    log_probabilities = predictions.log_probabilities
    probabilities = np.exp(log_probabilities)
    targets = np.arange(probabilities.shape[1]) == predictions.labels[:, None]
    if predictions.is_sigmoid:  # log(1 - sigmoid(x)) is log(sigmoid(x)) - x
        log_loss = -(log_probabilities - np.where(targets, 0, predictions.outputs)).sum(1)
    else:
        log_loss = -log_probabilities[targets]
    return {
        "expected_calibration_error": expected_calibration_error(probabilities, predictions.labels),
        "log_loss": float(log_loss.mean()),
        "brier_loss": float(((probabilities - targets) ** 2).sum(1).mean()),
    }


def activation_of(model):
    """Returns the name of the activation that makes a model's probabilities, and whether the model
    applies it."""
    is_applied = gives_probabilities(model)
    find = last_activation_of if is_applied else logits_activation_of
    return find(model), is_applied


def predict(model, inputs):
    """Returns the `Predictions` of a classifier for the test split."""
    arrays = collect(model, outputs_of, inputs)
    counted = with_class(arrays)
    refuse_several_labels(arrays["labels"][counted])
    outputs = arrays["outputs"][counted].astype("float64")
    activation, is_applied = activation_of(model)
    if activation == "sigmoid":
        if is_applied:
            outputs = logit(np.clip(outputs, 1e-7, 1 - 1e-7))
        log_probabilities = log_expit(outputs)
    elif is_applied:
        log_probabilities = np.log(np.maximum(outputs, 1e-30))
    else:
        log_probabilities = log_softmax(outputs, axis=1)
    return Predictions(
        outputs,
        log_probabilities,
        labels=arrays["labels"][counted].argmax(1),
        indices=np.flatnonzero(counted),
        is_sigmoid=activation == "sigmoid",
    )


def calibration_bins(probabilities, labels, bins=15):
    """Bins predictions by confidence (Guo et al., 2017, section 2).

    Returns:
        `(counts, mean confidences, accuracies)`, each `(bins,)`.
    """
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == labels
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    counts = np.bincount(index, minlength=bins)
    divisor = np.maximum(counts, 1)
    means = (
        np.bincount(index, weights=values, minlength=bins) / divisor
        for values in (confidence, right)
    )
    return counts, *means


def expected_calibration_error(probabilities, labels):
    """Returns the mean absolute difference between confidence and accuracy over bins, weighted by
    the bin counts."""
    counts, confidence, accuracy = calibration_bins(probabilities, labels)
    return float((counts * np.abs(confidence - accuracy)).sum() / counts.sum())


def confusion_matrix(labels, predicted, classes):
    """Counts predicted classes `(N,)` by true class (rows) and predicted class (columns): int64
    `(classes, classes)`."""
    pairs = labels.astype(np.int64) * classes + predicted
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
