"""Checks that models, datasets and labels suit an evaluator."""

import logging
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import data
from keras_vit.evaluation.collecting import with_labels
from keras_vit.models.any_model import check_not_masked, output_shape_of

log = logging.getLogger("keras_vit")


def check_classes(model: keras.Model, inputs: data.InputPipeline) -> None:
    """Raises a `ValueError` unless the data have classes and the model has one output for each."""
    check_not_masked(model)
    shape = output_shape_of(model)
    classes = len(inputs.test.class_names)
    if with_labels(inputs).target != "classes" or shape[1:] != (classes,):
        raise ValueError(
            "The data must have classes, and the model must have one output for each of "
            f"{classes} classes; the evaluators of models of pixels are segmentation, "
            "segmentation_windows and depth. Received: "
            f"output_shape={shape}, target={inputs.target!r}"
        )


def check_imagenet(model: keras.Model, inputs: data.InputPipeline | None = None) -> None:
    """Raises a `ValueError` unless the model has one output for each of ImageNet's 1000 classes."""
    check_not_masked(model)
    if output_shape_of(model)[1:] != (1000,):
        raise ValueError(
            "The evaluator requires a classifier of ImageNet's 1000 classes, in their usual order. "
            f"Received: output_shape={output_shape_of(model)}"
        )


def check_class_names(names: Sequence[str], inputs: data.InputPipeline) -> None:
    """Raises a `ValueError` if a class of the test split is another output of the model.

    Classes are compared with outputs by position. Names are compared without case; logs names that
    the model does not have, because these may be other words for the same classes.

    Args:
        names: names of the model's classes, in the order of its outputs; () if unknown.
        inputs: a `data.InputPipeline`.
    """
    ours = [str(name).casefold() for name in names]
    theirs = [str(name).casefold() for name in inputs.test.class_names]
    if ours == theirs or len(ours) != len(theirs):
        return
    moved = [name for i, name in enumerate(theirs) if name in ours and ours[i] != name]
    if moved:
        raise ValueError(
            "The classes of the dataset must have the order of the model's outputs. Received: "
            f"{moved[:10]} at other positions; classes {theirs[:10]}, outputs {ours[:10]}"
        )
    unknown = [name for name in theirs if name not in ours]
    log.warning(
        "%d classes of the dataset have other names than the model's outputs and are compared by "
        "position, such as %s",
        len(unknown),
        ", ".join(f"{name} with {ours[theirs.index(name)]}" for name in unknown[:5]),
    )


_ONE_LABEL = (
    "This evaluator requires one label per example; `multi_label`, `average_precision` and `top1` "
    "support several labels. Received: examples of the split {!r} with several labels"
)


def check_one_label(inputs):
    """Raises a `ValueError` unless each test example has one class; unknown labels are read from
    the first batch."""
    inputs = with_labels(inputs)
    if inputs.target != "classes":
        raise ValueError(
            f"This evaluator requires images with classes. Received: target={inputs.target!r}"
        )
    if inputs.test.multi_label:
        raise ValueError(_ONE_LABEL.format("test"))
    if inputs.test.labels is None:
        _, labels, _ = next(iter(inputs.eval_batches()))
        refuse_several_labels(np.asarray(labels))


def refuse_several_labels(labels, split="test"):
    """Raises a `ValueError` if a row of one-hot labels `(N, classes)` has several labels."""
    if (np.count_nonzero(labels, axis=1) > 1).any():
        raise ValueError(_ONE_LABEL.format(split))


def with_class(arrays, split="test"):
    """Returns which examples have a correct class and positive weight, a Boolean array `(N,)`;
    `arrays` are those of `collect` for the split."""
    counted = arrays["weights"] > 0
    chosen = counted & (arrays["labels"] > 0).any(1)
    check_has_class(chosen.mean())
    if left_out := np.count_nonzero(counted & ~chosen):
        log.warning(
            "%s: skipped %d of %d examples, which have no correct class",
            split,
            left_out,
            len(chosen),
        )
    return chosen


def check_has_class(share):
    """Raises a `ValueError` if `share`, the share or number of examples with a correct class, is
    0."""
    if not share:
        raise ValueError(
            "At least one example must have a correct class; only `average_precision` and "
            "`multi_label` use the others. Received: examples without a correct class"
        )
