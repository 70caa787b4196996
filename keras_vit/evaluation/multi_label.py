"""Computes metrics of classifiers for images with any number of classes."""

import numpy as np
from scipy.special import expit
from sklearn.metrics import average_precision_score

from keras_vit.evaluation.calibration import activation_of
from keras_vit.evaluation.checks import check_classes, check_has_class
from keras_vit.evaluation.collecting import counted_outputs

THRESHOLDS = np.arange(1, 100) / 100


def check(model, inputs):
    """Raises a `ValueError` unless the model gives an independent probability for each class."""
    check_classes(model, inputs)
    activation, _ = activation_of(model)
    if activation != "sigmoid":
        raise ValueError(
            "The probabilities of the classes must be independent, as those of models that were "
            f"trained with loss='sigmoid'. Received: activation={activation!r}"
        )


def multi_label(model, inputs, engine=None, threshold=None):
    """Computes the average precision of each class, their mean, and F1 at thresholds of the
    probabilities.

    "macro_f1" is the mean F1 of the classes if an image has the classes whose probability is at
    least 0.5. "best_threshold" is the threshold in `THRESHOLDS` with the largest mean,
    "best_macro_f1": it fits these images, so apply the threshold of a validation split to others.
    Classes without examples are left out of all means.

    Args:
        threshold: a further threshold, in (0, 1), for "macro_f1_at_<threshold>".
    """
    outputs, labels = counted_outputs(model, inputs)
    right = labels > 0
    outputs = outputs.astype("float64")
    _, is_applied = activation_of(model)
    probabilities = outputs if is_applied else expit(outputs)
    precisions = average_precisions(outputs, right)
    f1_of = {value: macro_f1(right, probabilities, value) for value in THRESHOLDS.tolist()}
    best = max(f1_of, key=f1_of.get)  # the lowest of equals
    metrics = {
        "mean_average_precision": float(np.mean(list(precisions.values()))),
        "macro_f1": f1_of[0.5],
        "best_macro_f1": f1_of[best],
        "best_threshold": best,
    }
    if threshold is not None:
        metrics[f"macro_f1_at_{threshold:g}"] = macro_f1(right, probabilities, threshold)
    names = inputs.test.class_names
    of_class = {f"average_precision_{names[i]}": value for i, value in precisions.items()}
    return metrics | of_class


def average_precision(model, inputs, engine=None):
    """Computes the mean average precision, in [0, 1], over the classes with at least one
    example."""
    outputs, labels = counted_outputs(model, inputs)
    precisions = average_precisions(outputs, labels > 0)
    return {"mean_average_precision": float(np.mean(list(precisions.values())))}


def average_precisions(scores, right):
    """Returns `{class index: average precision}` from scores and Boolean labels, both
    `(N, classes)`, without classes that have no example."""
    present = np.flatnonzero(right.any(0))
    check_has_class(len(present))
    return {i: float(average_precision_score(right[:, i], scores[:, i])) for i in present}


def macro_f1(right, probabilities, threshold):
    """Returns the mean F1 of the classes with examples; arguments are `(N, classes)`."""
    predicted = probabilities >= threshold
    true_positives = (predicted & right).sum(0)
    positives = right.sum(0)
    present = positives > 0
    f1 = 2 * true_positives[present] / (predicted.sum(0) + positives)[present]
    return float(f1.mean())
