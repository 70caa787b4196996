"""Evaluates models on the data of a training run or on other datasets.

`config.evals` lists the evaluators of a run. The run reports their metrics as
`<evaluator>/<metric>`. The command `keras-vit evaluate` applies evaluators to any model. To add an
evaluator, write a function `(model, inputs, engine)` that returns a dict of floats, and add a
`Kind` with this function to `EVALUATORS`.

Examples of evaluator names:

    top1                    on the run's data
    fewshot:digits          on another dataset
    knn:cifar10@/data/tfds  on a dataset in a folder
    real:real.json@FOLDER   with ReaL's label file, on ImageNet's validation images in a folder
    multi_label:0.31        with F1 also at a threshold, such as the best one of a validation split
    objectnet:folder@FOLDER on the unpacked archive of ObjectNet
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_vit.arguments import did_you_mean
from keras_vit.data import InputPipeline
from keras_vit.evaluation import (
    accuracy,
    calibration,
    dense,
    frozen,
    image_text,
    multi_label,
    objectnet,
    report,
)
from keras_vit.evaluation.checks import check_imagenet
from keras_vit.evaluation.collecting import reuse_compiled
from keras_vit.evaluation.evaluator import Evaluator, Kind
from keras_vit.evaluation.loading import load_inputs
from keras_vit.models.any_model import model_digest, weights_digest

_BOTH = ("train", "test")
_ACCURACIES = ("accuracy", "top5_accuracy")
_PIXELS = ("mean_iou", "pixel_accuracy")
EVALUATORS = {
    "top1": Kind(_ACCURACIES, accuracy.top1),
    "real": Kind(("accuracy",), accuracy.real, dataset="imagenet2012_real"),
    "imagenet_v2": Kind(_ACCURACIES, accuracy.top1, dataset="imagenet_v2"),
    "fewshot": Kind(
        tuple(f"{shots}shot" for shots in frozen.SHOTS),
        frozen.fewshot,
        frozen.check_representation,
        _BOTH,
    ),
    "linear_probe": Kind(
        ("accuracy", "inverse_regularization"),
        frozen.linear_probe,
        frozen.check_linear_probe,
        _BOTH,
    ),
    "knn": Kind(("accuracy",), frozen.knn, frozen.check_representation, _BOTH),
    "calibration": Kind(
        ("expected_calibration_error", "log_loss", "brier_loss"),
        calibration.calibration,
        calibration.check_calibration,
    ),
    "balanced": Kind(
        ("balanced_accuracy", "macro_f1", "roc_auc"),
        accuracy.balanced,
        calibration.check_calibration,
    ),
    "average_precision": Kind(("mean_average_precision",), multi_label.average_precision),
    "multi_label": Kind(
        ("mean_average_precision", "macro_f1", "best_macro_f1", "best_threshold"),
        multi_label.multi_label,
        multi_label.check,
    ),
    "retrieval": Kind(image_text.RETRIEVAL, image_text.retrieval, image_text.check_retrieval),
    "zero_shot": Kind(_ACCURACIES, image_text.zero_shot, image_text.check_zero_shot),
    "objectnet": Kind(
        objectnet.METRICS,
        objectnet.objectnet,
        check_imagenet,
        dataset="folder",
        load=objectnet.load,
    ),
    "segmentation": Kind(_PIXELS, dense.segmentation, dense.check_masks),
    "segmentation_windows": Kind(_PIXELS, dense.segmentation_windows, dense.check_masks),
    "depth": Kind(("abs_rel_error", "rms_error", "delta1"), dense.depth, dense.check_depth),
}
"""All kinds of evaluators by name."""

REPORTS = {"classes": report.write_report, "masks": dense.write_report}
"""Maps the target kind of the data to the function that writes the report of `evaluate`."""


def get(
    names: Iterable[str],
    max_bad_share: float = 0.01,
    class_names: Sequence[str] = (),
    run: Mapping[str, Any] | None = None,
) -> dict[str, Evaluator]:
    """Returns evaluators by name.

    Args:
        names: names of the form `NAME`, `NAME:DATASET` or `NAME:DATASET@FOLDER`, in which `NAME` is
            a key of `EVALUATORS`.
        max_bad_share: maximum fraction of unreadable examples in an evaluator's own dataset, from 0
            to 1.
        class_names: names of the model's classes, in the order of its outputs; by default those of
            the run's data.
        run: the `data` fields of the run's config. A folder without subfolders for splits is
            divided as in the run if it is the folder of the run or the evaluator needs training
            images; otherwise all its images are tested.

    Raises:
        ValueError: an evaluator is unknown.
    """
    loaded: dict = {}  # evaluators share their datasets
    evaluators = {}
    for name in names:
        kind, dataset, path = _parse(name)
        evaluators[name] = Evaluator(
            name, kind, dataset, path, max_bad_share, tuple(class_names), run or {}, loaded
        )
    return evaluators


def _parse(text):
    """Returns the kind, the dataset and the folder of the evaluator that a text names."""
    # Split at the first colon only, because a dataset "tfds:NAME" has another one.
    name, _, place = text.partition(":")
    dataset, _, path = place.partition("@")
    if name not in EVALUATORS:
        hint = did_you_mean(name, EVALUATORS)
        if "," in text:
            hint = " To set several in a config, write --config.evals=\"('top1', 'knn')\"."
        raise ValueError(
            f"An evaluator must be one of {', '.join(EVALUATORS)}.{hint} Received: {text!r}"
        )
    kind = EVALUATORS[name]
    if name == "multi_label" and re.fullmatch(r"\d+\.?\d*|\.\d+", place):
        kind = _with_threshold(kind, place)
        dataset = ""
    if name == "real" and dataset.endswith(".json"):
        compute = functools.partial(accuracy.real_from_file, path=dataset)
        check = functools.partial(accuracy.check_real_labels, path=dataset)
        kind = Kind(kind.metrics, compute, check, splits=("",))
        dataset = "folder"
    dataset = dataset or kind.dataset
    if path and not dataset:
        raise ValueError(
            f"A folder must follow the name of its dataset, as in {name}:folder@{path}. Received: "
            f"{text!r}"
        )
    return kind, dataset, path


def _with_threshold(kind, text):
    """Returns the kind `multi_label` with F1 also at the threshold in `text`."""
    threshold = float(text)
    if not 0 < threshold < 1:
        raise ValueError(
            f"The threshold of multi_label must be between 0 and 1. Received: 'multi_label:{text}'"
        )
    metrics = (*kind.metrics, f"macro_f1_at_{threshold:g}")
    compute = functools.partial(kind.evaluate, threshold=threshold)
    return dataclasses.replace(kind, metrics=metrics, evaluate=compute)


def evaluate(
    model: keras.Model, names: Iterable[str], inputs: InputPipeline | None = None, **options: Any
) -> dict[str, float]:
    """Returns the metrics of several evaluators as `{"<evaluator>/<metric>": value}`.

    Args:
        model: a `keras.Model`.
        names: names of evaluators, as for `get`.
        inputs: the `data.InputPipeline` for evaluators without their own dataset.
        **options: other arguments of `get`, such as `class_names`.

    Raises:
        ValueError: an evaluator is unknown, its dataset cannot be loaded, or it cannot evaluate the
            model.
    """
    with reuse_compiled():
        return {
            f"{name}/{metric}": value
            for name, evaluator in get(names, **options).items()
            for metric, value in evaluator.evaluate(model, inputs).items()
        }


__all__ = [
    "EVALUATORS",
    "Evaluator",
    "Kind",
    "evaluate",
    "get",
    "load_inputs",
    "model_digest",
    "weights_digest",
]
