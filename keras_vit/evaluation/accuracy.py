"""Computes the accuracy of classifiers, also with equal weights of all classes."""

import re
import warnings

import numpy as np
from keras import ops
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

from keras_vit import files
from keras_vit.evaluation.calibration import predict
from keras_vit.evaluation.checks import check_has_class, check_imagenet
from keras_vit.evaluation.collecting import collect, mean_over_examples, outputs_of

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


def top1(model, inputs, engine=None):
    """Computes top-1 and top-5 accuracy; a prediction is correct if it is one of the example's
    labels.

    Examples without a correct class are left out.
    """
    means = mean_over_examples(model, inputs, top_k_accuracy, engine)
    share = means.pop("has_class")
    check_has_class(share)
    return {name: value / share for name, value in means.items()}


def top_k_accuracy(model, batch):
    """Computes "accuracy", "top5_accuracy" and "has_class", float32 `(B,)`.

    The accuracies are NaN for an example with a NaN logit, and 0 for an example without a correct
    class.
    """
    images, labels, _ = batch
    logits = ops.cast(model(images, training=False), "float32")
    _, best = ops.top_k(logits, min(5, logits.shape[-1]))  # best first
    right = ops.cast(ops.take_along_axis(labels, best, axis=-1) > 0, "float32")
    right = ops.where(ops.any(ops.isnan(logits), axis=-1, keepdims=True), float("nan"), right)
    has_class = ops.cast(ops.any(labels > 0, axis=-1), "float32")
    return {
        "accuracy": right[:, 0],
        "top5_accuracy": ops.max(right, axis=-1),
        "has_class": has_class,
    }


def real(model, inputs, engine=None):
    """Computes the accuracy on ImageNet's reassessed labels (Beyer et al., 2020;
    `imagenet2012_real` in TFDS)."""
    return {"accuracy": top1(model, inputs)["accuracy"]}


def real_from_file(model, inputs, engine=None, path=""):
    """Computes the accuracy on the reassessed labels in `real.json`; image files must have their
    ImageNet names."""
    labels = check_real_labels(model, inputs, path)
    arrays = collect(model, outputs_of, inputs)
    counted = right = 0
    for index in np.flatnonzero(arrays["weights"]):
        name = inputs.test.name_of(int(index))
        match = _NUMBER.search(name)
        if not match or not 1 <= int(match[1]) <= len(labels):
            raise ValueError(
                f"Images must have the names ILSVRC2012_val_00000001 to {len(labels):08}, in the "
                f"order of the labels. Received: {name!r}"
            )
        answers = labels[int(match[1]) - 1]
        counted += bool(answers)
        right += int(arrays["outputs"][index].argmax()) in answers
    if not counted:
        raise ValueError(f"At least one readable image must have a label. Received: path={path!r}")
    return {"accuracy": right / counted}


def check_real_labels(model, inputs, path):
    """Reads `real.json`; raises a `ValueError` unless model and labels have ImageNet's classes."""
    check_imagenet(model)
    labels = files.read_json(path)
    is_valid = isinstance(labels, list) and all(
        isinstance(entry, list) and all(label in range(1000) for label in entry) for entry in labels
    )
    if not is_valid:
        raise ValueError(
            "The file must exist and contain a list of labels, integers in [0, 1000), for "
            f"each image. Received: path={path!r}"
        )
    return labels


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
