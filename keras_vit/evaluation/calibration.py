"""Whether a model's probabilities are those of being right."""

import numpy as np
from keras import ops

from keras_vit.evaluation.collecting import check_classes, collect
from keras_vit.models.shapes import gives_probabilities

METRICS = ("expected_calibration_error", "log_loss", "brier_loss")
SPLITS = ("test",)
BINS = 15


def evaluate(model, inputs, engine=None):
    """How far the probabilities of a model, its softmax, are from the shares of right answers.

    Args:
        model: a `keras.Model` whose outputs are logits, or probabilities that sum to 1.
        inputs: the `data.InputPipeline`.
        engine: of a run; not used.

    Returns:
        `expected_calibration_error` in [0, 1] (see `calibration_bins`), `log_loss` in nats, and `brier_loss`, the mean
        squared distance of the probabilities from the right answer, in [0, 2].

    Raises:
        ValueError: the model has other classes than the data, or no example can be read.
    """
    logarithms, labels, _ = log_probabilities_and_labels(model, inputs)
    log_right = np.take_along_axis(logarithms, labels[:, None], 1)[:, 0]
    probabilities, right = np.exp(logarithms), np.exp(log_right)
    return {
        "expected_calibration_error": expected_calibration_error(probabilities, labels),
        "log_loss": float(-log_right.mean()),
        "brier_loss": float(((probabilities**2).sum(1) - 2 * right + 1).mean()),
    }


def probabilities_and_labels(model, inputs):
    """`(probabilities, labels, indices)` of the test examples that can be read and have a label: float64
    `(N, classes)`, and integers `(N,)` both."""
    logarithms, labels, indices = log_probabilities_and_labels(model, inputs)
    return np.exp(logarithms), labels, indices


def log_probabilities_and_labels(model, inputs):
    """As `probabilities_and_labels`, with the natural logarithms of the probabilities; -69 and more where the model
    gives probabilities itself."""
    check_classes(model, inputs.test)
    arrays = collect(model, _outputs, inputs)
    counted = arrays["weights"] > 0
    if (np.count_nonzero(arrays["labels"][counted], axis=1) > 1).any():
        raise ValueError(
            "Calibration is defined for one right class; `top1` and `average_precision` take several. "
            "Received: examples with several right labels"
        )
    outputs = arrays["outputs"][counted].astype("float64")
    if gives_probabilities(model):
        outputs = np.log(np.maximum(outputs, 1e-30))
    else:
        outputs -= outputs.max(1, keepdims=True)
        outputs -= np.log(np.exp(outputs).sum(1, keepdims=True))
    return outputs, arrays["labels"][counted].argmax(1), np.flatnonzero(counted)


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
