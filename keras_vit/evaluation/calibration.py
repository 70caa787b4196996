"""Whether a model's probabilities are those of being right."""

import numpy as np
from keras import ops

from keras_vit.evaluation.collecting import check_classes, collect
from keras_vit.models.shapes import gives_probabilities, logits_activation_of

METRICS = ("expected_calibration_error", "log_loss", "brier_loss")
SPLITS = ("test",)
check = check_classes
BINS = 15


def evaluate(model, inputs, engine=None):
    """How far the probabilities of a model are from the shares of right answers.

    Args:
        model: a `keras.Model` whose outputs are probabilities, or logits; their softmax, or for a model trained with
            the loss "sigmoid" their sigmoid, is taken.
        inputs: the `data.InputPipeline`.
        engine: of a run; not used.

    Returns:
        `expected_calibration_error` in [0, 1] (see `calibration_bins`); `log_loss` in nats, the cross-entropy, of
        sigmoids the sum over the classes; and `brier_loss`, the mean squared distance of the probabilities from the
        right answer.

    Raises:
        ValueError: the model has other classes than the data, or no example can be read.
    """
    outputs, labels, _, kind = _outputs_and_labels(model, inputs)
    probabilities = _probabilities(outputs, kind)
    targets = np.arange(outputs.shape[1]) == labels[:, None]
    if kind == "sigmoid":  # -log(sigmoid(x)) is log(1 + exp(-x))
        log_loss = np.logaddexp(0, np.where(targets, -outputs, outputs)).sum(1)
    else:
        log_loss = -_log_probabilities(outputs, kind)[targets]
    return {
        "expected_calibration_error": expected_calibration_error(probabilities, labels),
        "log_loss": float(log_loss.mean()),
        "brier_loss": float(((probabilities - targets) ** 2).sum(1).mean()),
    }


def probabilities_and_labels(model, inputs):
    """`(probabilities, labels, indices)` of the test examples that can be read and have a label: float64
    `(N, classes)`, and integers `(N,)` both."""
    outputs, labels, indices, kind = _outputs_and_labels(model, inputs)
    return _probabilities(outputs, kind), labels, indices


def _outputs_and_labels(model, inputs):
    """As `probabilities_and_labels`, with the model's outputs, and what they are: "probabilities", or logits of a
    "softmax" or "sigmoid"."""
    check_classes(model, inputs)
    arrays = collect(model, _outputs, inputs)
    counted = arrays["weights"] > 0
    if (np.count_nonzero(arrays["labels"][counted], axis=1) > 1).any():
        raise ValueError(
            "Calibration is defined for one right class; `top1` and `average_precision` take several. "
            "Received: examples with several right labels"
        )
    kind = "probabilities" if gives_probabilities(model) else logits_activation_of(model)
    outputs = arrays["outputs"][counted].astype("float64")
    return outputs, arrays["labels"][counted].argmax(1), np.flatnonzero(counted), kind


def _log_probabilities(outputs, kind):
    if kind == "probabilities":
        return np.log(np.maximum(outputs, 1e-30))
    return outputs - np.logaddexp.reduce(outputs, axis=1, keepdims=True)


def _probabilities(outputs, kind):
    if kind == "sigmoid":
        return np.exp(-np.logaddexp(0, -outputs))
    return outputs if kind == "probabilities" else np.exp(_log_probabilities(outputs, kind))


def calibration_bins(probabilities, labels, bins=BINS):
    """Predictions grouped by their confidence, the largest probability, into bins of equal width.

    Args:
        probabilities: `(N, classes)`.
        labels: integers `(N,)`.
        bins: how many.

    Returns:
        `(counts, confidence, accuracy)`, each `(bins,)`: how many predictions are in each bin, their mean confidence
        and the share of right ones; 0 for an empty bin.

    Reference: Guo et al., "On Calibration of Modern Neural Networks" (2017), section 2.
    """
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    counts = np.bincount(index, minlength=bins)
    divisor = np.maximum(counts, 1)
    means = (np.bincount(index, weights=values, minlength=bins) / divisor for values in (confidence, right))
    return counts, *means


def expected_calibration_error(probabilities, labels, bins=BINS):
    """The mean over predictions of the distance between confidence and accuracy of their bin, in [0, 1]."""
    counts, confidence, accuracy = calibration_bins(probabilities, labels, bins)
    return float((counts * np.abs(confidence - accuracy)).sum() / counts.sum())


def confusion_matrix(probabilities, labels):
    """How often each class is taken for each: integers `(classes, classes)`, a row for each right class."""
    classes = probabilities.shape[1]
    return np.bincount(labels * classes + probabilities.argmax(1), minlength=classes**2).reshape(classes, classes)


def _outputs(model, batch):
    return {"outputs": ops.cast(model(batch[0], training=False), "float32")}
