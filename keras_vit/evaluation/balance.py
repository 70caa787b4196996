"""Computes metrics that count all classes equally, for unequal classes."""

import warnings

import numpy as np
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

from keras_vit.evaluation.calibration import predict


def balanced(model, inputs, engine=None):
    """Computes the balanced accuracy (the mean recall of the classes), the macro F1 score and the
    area under the ROC curve.

    The area is the mean over classes of one class against the rest. Classes without examples are
    left out; the area is NaN if all examples have one class.
    """
    predictions = predict(model, inputs)
    labels = predictions.labels
    predicted = predictions.outputs.argmax(1)
    present = np.unique(labels)
    with warnings.catch_warnings():
        # scikit-learn warns about predicted classes without examples.
        warnings.simplefilter("ignore")
        recall = balanced_accuracy_score(labels, predicted)
    scores = predictions.log_probabilities.T
    areas = [roc_auc_score(labels == i, scores[i]) for i in present if len(present) > 1]
    return {
        "balanced_accuracy": float(recall),
        "macro_f1": float(f1_score(labels, predicted, labels=present, average="macro")),
        "roc_auc": float(np.mean(areas)) if areas else float("nan"),
    }
