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
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras

from keras_vit.arguments import did_you_mean
from keras_vit.data import InputPipeline
from keras_vit.evaluation import (
    accuracy,
    balance,
    calibration,
    dense,
    frozen,
    image_text,
    multi_label,
    objectnet,
    report,
)
from keras_vit.evaluation.checks import check_class_names, check_classes, check_imagenet
from keras_vit.evaluation.collecting import reuse_compiled
from keras_vit.evaluation.loading import load_inputs, splits_to_read
from keras_vit.models.any_model import image_shape_of, model_digest, weights_digest
from keras_vit.preprocessing import find_preprocessing
from keras_vit.training import Engine


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of evaluator.

    Attributes:
        metrics: names of the metrics; an evaluation may return more.
        evaluate: function `(model, inputs, engine)` that returns `{metric: float}`.
        check: function `(model, inputs)` that raises a `ValueError` if the model cannot be
            evaluated on the data.
        splits: names of the required splits.
        dataset: name of the default dataset; "" for the run's data.
        load: function that loads the dataset, with the arguments of `load_inputs`.
    """

    metrics: tuple[str, ...]
    evaluate: Callable
    check: Callable = check_classes
    splits: tuple[str, ...] = ("test",)
    dataset: str = ""
    load: Callable = load_inputs


_BOTH = ("train", "test")
_ACCURACIES = ("accuracy", "top5_accuracy")
_SHOTS = tuple(f"{shots}shot" for shots in frozen.SHOTS)
_PIXELS = ("mean_iou", "pixel_accuracy")
_CALIBRATION = ("expected_calibration_error", "log_loss", "brier_loss")
_MULTI_LABEL = ("mean_average_precision", "macro_f1", "best_macro_f1", "best_threshold")
_BALANCED = ("balanced_accuracy", "macro_f1", "roc_auc")
EVALUATORS = {
    "top1": Kind(_ACCURACIES, accuracy.top1),
    "real": Kind(("accuracy",), accuracy.real, dataset="imagenet2012_real"),
    "imagenet_v2": Kind(_ACCURACIES, accuracy.top1, dataset="imagenet_v2"),
    "fewshot": Kind(_SHOTS, frozen.fewshot, frozen.check_representation, _BOTH),
    "linear_probe": Kind(
        ("accuracy", "inverse_regularization"),
        frozen.linear_probe,
        frozen.check_linear_probe,
        _BOTH,
    ),
    "knn": Kind(("accuracy",), frozen.knn, frozen.check_representation, _BOTH),
    "calibration": Kind(_CALIBRATION, calibration.calibration, calibration.check_calibration),
    "balanced": Kind(_BALANCED, balance.balanced, calibration.check_calibration),
    "average_precision": Kind(("mean_average_precision",), accuracy.average_precision),
    "multi_label": Kind(_MULTI_LABEL, multi_label.multi_label, multi_label.check),
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


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """A kind of evaluator, applied to a dataset.

    Attributes:
        name: full name, such as "fewshot:cifar10@/data/tfds".
        kind: the kind of evaluator.
        dataset: name of the dataset; "" for the run's data.
        path: folder of the dataset; "" for the default folder.
        max_bad_share: maximum fraction of examples that may be unreadable, in [0, 1].
        class_names: names of the model's classes; by default those of the run's data.
        run: the `data` fields of the run's config; {} if they are unknown.
    """

    name: str
    kind: Kind
    dataset: str = ""
    path: str = ""
    max_bad_share: float = 0.01
    class_names: tuple[str, ...] = ()
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    _loaded: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def METRICS(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return self.kind.metrics

    def check(self, model: keras.Model, inputs: InputPipeline | None = None) -> None:
        """Raises a `ValueError` if the dataset cannot be loaded or the model cannot be evaluated on
        it.

        Args:
            model: a `keras.Model`.
            inputs: the `data.InputPipeline` of the run; required by an evaluator without its own
                dataset.
        """
        self.kind.check(model, self._inputs(model, inputs))

    def evaluate(
        self, model: keras.Model, inputs: InputPipeline | None = None, engine: Engine | None = None
    ) -> dict[str, float]:
        """Returns a model's metrics as `{name: value}` with the names in `METRICS`.

        Args:
            model: a `keras.Model`.
            inputs: the `data.InputPipeline` of the run; required by an evaluator without its own
                dataset.
            engine: the `training.Engine` of the run; None outside a run.
        """
        loaded = self._inputs(model, inputs)
        return self.kind.evaluate(model, loaded, engine if loaded is inputs else None)

    def _inputs(self, model, inputs):
        """Returns the data of the evaluation, which are `inputs` for an evaluator without its own
        dataset."""
        names = self.class_names or (() if inputs is None else inputs.test.class_names)
        if "train" in self.kind.splits:
            names = ()  # a classifier that is trained on features does not use the model's classes
        if self.dataset:
            inputs = self._load(model, names)
        if inputs is None:
            raise ValueError(
                f"The evaluator needs a dataset, as in {self.name}:digits. Received: {self.name!r}"
            )
        if "train" not in self.kind.splits:
            check_class_names(self.class_names, inputs)
        return inputs

    def _load(self, model, names):
        """Loads the dataset, unless an evaluator with the same `_loaded` has it already."""
        splits = self.kind.splits
        of_model = image_shape_of(model), find_preprocessing(model)
        key = (self.dataset, self.path, splits, self.kind.load, *of_model, names)
        if key not in self._loaded:
            try:
                if self.dataset == "folder":
                    splits = splits_to_read(self.path, splits, self.run)
                self._loaded[key] = self.kind.load(
                    model,
                    self.dataset,
                    self.path,
                    splits,
                    max_bad_share=self.max_bad_share,
                    class_names=names,
                    run=self.run,
                )
            except ValueError as error:
                local = f"{self.name.partition(':')[0]}:{self.dataset}@FOLDER"
                raise ValueError(
                    f"{self.name} cannot load its dataset; specify a local copy as {local}. {error}"
                ) from error
        return self._loaded[key]


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
    fields = max_bad_share, tuple(class_names), run or {}, loaded
    return {name: _parse(name, fields) for name in names}


def _parse(text, fields):
    """Returns the evaluator that a text names; `fields` are its values from `max_bad_share` on."""
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
    if name == "multi_label" and re.fullmatch(r"[\d.]+", place):
        threshold = float(place) if place.count(".") <= 1 and place != "." else math.nan
        if not 0 < threshold < 1:
            raise ValueError(
                f"The threshold of multi_label must be between 0 and 1. Received: {text!r}"
            )
        compute = functools.partial(multi_label.multi_label, threshold=threshold)
        kind = dataclasses.replace(kind, evaluate=compute)
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
    return Evaluator(text, kind, dataset, path, *fields)


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
