"""Measures the calibration of classifiers: the agreement between their confidence and accuracy."""

import typing

import numpy as np

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
        outputs: logits, or probabilities if `kind` is "probabilities", float64 `(N, classes)`.
        log_probabilities: float64 `(N, classes)`.
        labels: class of each example, int64 `(N,)`.
        indices: index of each example in the test split, int64 `(N,)`.
        kind: "probabilities", or the activation that converts the logits to probabilities.
    """

    outputs: np.ndarray
    log_probabilities: np.ndarray
    labels: np.ndarray
    indices: np.ndarray
    kind: str


def check_calibration(model, inputs):
    """Raises a `ValueError` unless the model is a classifier and each example has one label."""
    check_classes(model, inputs)
    check_one_label(inputs)


def calibration(model, inputs, engine=None):
    """Computes the expected calibration error, the log loss in nats, and the Brier loss."""
    found = predictions(model, inputs)
    probabilities = np.exp(found.log_probabilities)
    targets = np.arange(probabilities.shape[1]) == found.labels[:, None]
    if found.kind == "sigmoid":  # log(1 - sigmoid(x)) is log(sigmoid(x)) - x
        log_loss = -(found.log_probabilities - np.where(targets, 0, found.outputs)).sum(1)
    else:
        log_loss = -found.log_probabilities[targets]
    return {
        "expected_calibration_error": expected_calibration_error(probabilities, found.labels),
        "log_loss": float(log_loss.mean()),
        "brier_loss": float(((probabilities - targets) ** 2).sum(1).mean()),
    }


def predictions(model, inputs):
    """Returns the `Predictions` of a classifier for the test split."""
    arrays = collect(model, outputs_of, inputs)
    counted = with_class(arrays)
    refuse_several_labels(arrays["labels"][counted])
    kind = "probabilities" if gives_probabilities(model) else logits_activation_of(model)
    outputs = arrays["outputs"][counted].astype("float64")
    if kind == "probabilities" and last_activation_of(model) == "sigmoid":
        outputs = np.clip(outputs, 1e-7, 1 - 1e-7)
        kind = "sigmoid"
        outputs = np.log(outputs / (1 - outputs))  # the logits
    if kind == "probabilities":
        log_probabilities = np.log(np.maximum(outputs, 1e-30))
    elif kind == "sigmoid":
        log_probabilities = -np.logaddexp(0, -outputs)
    else:
        log_probabilities = outputs - np.logaddexp.reduce(outputs, axis=1, keepdims=True)
    return Predictions(
        outputs,
        log_probabilities,
        labels=arrays["labels"][counted].argmax(1),
        indices=np.flatnonzero(counted),
        kind=kind,
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


def confusion_matrix(probabilities, labels):
    """Counts predictions by true class (rows) and predicted class (columns): integers
    `(classes, classes)`."""
    classes = probabilities.shape[1]
    pairs = labels * classes + probabilities.argmax(1)
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
