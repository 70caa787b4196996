"""Computes the accuracy and average precision of classifiers."""

import re

import numpy as np
from keras import ops
from sklearn.metrics import average_precision_score

from keras_vit import files
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


def average_precision(model, inputs, engine=None):
    """Computes the mean average precision, in [0, 1], over the classes with at least one
    example."""
    arrays = collect(model, outputs_of, inputs)
    counted = arrays["weights"] > 0
    return {
        "mean_average_precision": mean_average_precision(
            arrays["outputs"][counted], arrays["labels"][counted] > 0
        )
    }


def mean_average_precision(scores, right):
    """Computes the mean average precision from scores and Boolean labels, both `(N, classes)`;
    skips empty classes."""
    return float(np.mean(list(average_precisions(scores, right).values())))


def average_precisions(scores, right):
    """Returns `{class index: average precision}` for the same arguments, without empty classes."""
    present = np.flatnonzero(right.any(0))
    check_has_class(len(present))
    return {i: float(average_precision_score(right[:, i], scores[:, i])) for i in present}
