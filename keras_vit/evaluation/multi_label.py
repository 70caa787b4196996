"""Computes metrics of classifiers for images with any number of classes."""

import numpy as np
from scipy.special import expit
from sklearn.metrics import average_precision_score, f1_score

from keras_vit.evaluation.accuracy import mean_average_precision
from keras_vit.evaluation.collecting import check_classes, collect, outputs_of
from keras_vit.models.any_model import gives_probabilities, logits_activation_of

THRESHOLDS = np.arange(1, 100) / 100


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
    check_classes(model, inputs)
    arrays = collect(model, outputs_of, inputs)
    counted = arrays["weights"] > 0
    right = arrays["labels"][counted] > 0
    outputs = arrays["outputs"][counted].astype("float64")
    probabilities = outputs
    if not gives_probabilities(model):
        if logits_activation_of(model) != "sigmoid":
            raise ValueError(
                "The probabilities of the classes must be independent, as those of models that "
                f"were trained with loss='sigmoid'. Received: {logits_activation_of(model)!r}"
            )
        probabilities = expit(outputs)
    metrics = {"mean_average_precision": mean_average_precision(outputs, right)}
    metrics["macro_f1"] = macro_f1(right, probabilities, 0.5)
    values = [macro_f1(right, probabilities, value) for value in THRESHOLDS]
    metrics["best_macro_f1"] = max(values)
    metrics["best_threshold"] = float(THRESHOLDS[np.argmax(values)])
    if threshold is not None:
        metrics[f"macro_f1_at_{threshold:g}"] = macro_f1(right, probabilities, threshold)
    for label in np.flatnonzero(right.any(0)):
        name = f"average_precision_{inputs.test.class_names[label]}"
        metrics[name] = float(average_precision_score(right[:, label], outputs[:, label]))
    return metrics


def macro_f1(right, probabilities, threshold):
    """Returns the mean F1 of the classes with examples; arguments are `(N, classes)`."""
    present = right.any(0)
    predicted = probabilities[:, present] >= threshold
    return float(f1_score(right[:, present], predicted, average="macro", zero_division=0))
