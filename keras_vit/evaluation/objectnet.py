"""Accuracy of an ImageNet classifier on the 113 classes of ObjectNet that ImageNet has too."""

import numpy as np
from keras import ops

from keras_vit.evaluation.collecting import check_classes, collect

METRICS = ("accuracy", "top5_accuracy", "mapped_accuracy", "mapped_top5_accuracy")
SPLITS = ("test",)
check = check_classes
DATASET = "objectnet"


def evaluate(model, inputs, engine=None):
    """Both conventions of scoring ObjectNet; several classes of ImageNet may stand for one of ObjectNet.

    Args:
        model: a `keras.Model` whose outputs are 1,000 logits, in ImageNet's order.
        inputs: the `data.InputPipeline` of ObjectNet.
        engine: of a run; not used.

    Returns:
        `accuracy` and `top5_accuracy`: any right class is among the first or the five largest of all 1,000 logits.
        `mapped_accuracy` and `mapped_top5_accuracy`: the same among ObjectNet's classes alone, each with the largest
        logit of its classes of ImageNet.

    Raises:
        ValueError: the model has other classes than the data, or no image can be read.

    Reference: Barbu et al., "ObjectNet" (2019); the paper's appendix D.9 does not say which one it reports.
    """
    check_classes(model, inputs)
    arrays = collect(model, _outputs, inputs)
    counted = arrays["weights"] > 0
    groups = inputs.test.label_groups or [(label,) for label in range(len(inputs.test.class_names))]
    return score(arrays["outputs"][counted], arrays["labels"][counted] > 0, groups)


def score(outputs, right, groups):
    """The metrics of `evaluate`.

    Args:
        outputs: logits `(N, 1000)`.
        right: bool `(N, 1000)`, the right classes of each image, which are those of a group.
        groups: the classes of ImageNet of each class of ObjectNet, tuples of integers, whether it has images or not.
    """
    rows = np.zeros((len(groups), right.shape[1]), bool)
    for row, group in zip(rows, groups):
        row[list(group)] = True
    grouped = np.stack([outputs[:, row].max(1) for row in rows], axis=1)
    mapped_right = (right[:, None] == rows).all(-1)
    names = iter(METRICS)
    return {
        next(names): float(_any_of_largest(values, answers, count).mean())
        for values, answers in ((outputs, right), (grouped, mapped_right))
        for count in (1, 5)
    }


def _any_of_largest(values, right, count):
    best = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(right, best, axis=1).any(1)


def _outputs(model, batch):
    return {"outputs": ops.cast(model(batch[0], training=False), "float32")}
