"""What a model is worth: one evaluator per file.

An evaluator is a module with `METRICS`, the names of what it measures, `SPLITS`, which parts of a dataset it needs, and
`evaluate(model, inputs, engine=None)` to a dict of floats with these names. `config.evals` names the evaluators of a
run, whose metrics stand beside those of the task, as `<evaluator>/<metric>`; `experiments/evaluate.py` runs them on any
model. One that trains on datasets of its own has `evaluate_tasks(model, names, path, engine)` instead, and is given no
data. To add one, write a file like `top1.py` and its row here.

    top1                       on the data of the run
    fewshot:digits             on a dataset
    knn:cifar10@/data/tfds     on a dataset that lies in a folder
    fewshot:digits+cifar10     on several, with one ridge weight for all of them
    vtab:cifar100+svhn@FOLDER  fine-tuned on each of these tasks of VTAB-1k
    real:real.json@FOLDER      ReaL's labels from their file, for ImageNet's validation images in a folder
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import keras

from keras_vit.data import InputPipeline
from keras_vit.evaluation import (
    average_precision,
    calibration,
    fewshot,
    imagenet_real,
    imagenet_v2,
    knn,
    linear_probe,
    top1,
    vtab,
)
from keras_vit.evaluation.inputs import load_inputs
from keras_vit.models.digest import model_digest, weights_digest
from keras_vit.models.shapes import image_shape_of
from keras_vit.preprocessing import find_preprocessing
from keras_vit.training import Engine

EVALUATORS = {
    "top1": top1,
    "real": imagenet_real,
    "imagenet_v2": imagenet_v2,
    "fewshot": fewshot,
    "linear_probe": linear_probe,
    "knn": knn,
    "calibration": calibration,
    "average_precision": average_precision,
    "vtab": vtab,
}
"""The evaluators by name: modules with `METRICS`, `SPLITS` and `evaluate`."""


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """An evaluator on some data.

    Attributes:
        name: what was asked for, "fewshot:cifar10@/data/tfds".
        module: its row of `EVALUATORS`.
        datasets: the names of its datasets; () for that of the run, or the one that belongs to the evaluator.
        path: the folder where they lie; "" for the usual place.
        max_bad_share: the share of their examples that may be unreadable.
    """

    name: str
    module: Any
    datasets: tuple = ()
    path: str = ""
    max_bad_share: float = 0.01
    _loaded: dict = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def METRICS(self) -> tuple[str, ...]:
        if len(self.datasets) > 1 or (self.datasets and self._trains):
            return self.module.metrics_of_datasets(self.datasets)
        return self.module.METRICS

    @property
    def _trains(self):
        """Whether it trains on datasets of its own, which are not loaded for it."""
        return hasattr(self.module, "evaluate_tasks")

    def check(self, model: keras.Model, inputs: InputPipeline | None = None) -> None:
        """Loads the datasets, and raises a `ValueError` if the evaluator cannot be used on a model.

        Args:
            model, inputs: as for `evaluate`.
        """
        if self._trains:
            self.module.check_tasks(model, self.datasets, self.path)
            return
        loaded = self._inputs(model, inputs)
        if self._has_json:
            self.module.read_labels(model, self.datasets[0])
            return
        for part in loaded.values():
            self.module.check(model, part)

    def evaluate(
        self, model: keras.Model, inputs: InputPipeline | None = None, engine: Engine | None = None
    ) -> dict[str, float]:
        """The metrics of a model, a dict of floats by the names in `METRICS`.

        Args:
            model: a `keras.Model`.
            inputs: the `data.InputPipeline` of the run, for an evaluator without a dataset of its own.
            engine: the `training.Engine` of the run; None outside of one.

        Raises:
            ValueError: there is no such dataset, it is not where it was looked for, or does not fit the model.
        """
        if self._trains:
            return self.module.evaluate_tasks(model, self.datasets, self.path, engine)
        loaded = self._inputs(model, inputs)
        if self._has_json:
            return self.module.evaluate_json(model, loaded[""], self.datasets[0])
        if len(loaded) > 1:
            return self.module.evaluate_datasets(model, loaded)
        return self.module.evaluate(model, *loaded.values(), *([engine] if "" in loaded else []))

    @property
    def _has_json(self):
        return hasattr(self.module, "evaluate_json") and bool(self.datasets) and self.datasets[0].endswith(".json")

    def _inputs(self, model, inputs):
        """The `InputPipeline` by the name of each dataset, "" for that of the run or of a folder with JSON labels."""
        if self._has_json:
            return {"": self._load(model, "folder", splits=("",))}
        datasets = self.datasets or ((self.module.DATASET,) if hasattr(self.module, "DATASET") else ())
        if datasets:
            return {name: self._load(model, name, self.module.SPLITS) for name in datasets}
        if inputs is None:
            raise ValueError(f"The evaluator needs a dataset, such as {self.name}:digits. Received: {self.name!r}")
        return {"": inputs}

    def _load(self, model, dataset, splits):
        key = (dataset, image_shape_of(model), find_preprocessing(model))
        if key not in self._loaded:
            try:
                loaded = load_inputs(model, dataset, self.path, splits, max_bad_share=self.max_bad_share)
            except ValueError as error:
                evaluator = self.name.partition(":")[0]
                raise ValueError(
                    f"{self.name} cannot have its dataset; {evaluator}:{dataset}@FOLDER names a local copy. {error}"
                ) from error
            self._loaded[key] = loaded
        return self._loaded[key]


def get(names: Iterable[str], max_bad_share: float = 0.01) -> dict[str, Evaluator]:
    """The evaluators of some names, `NAME[:DATASET[+DATASET...][@FOLDER]]`, a dict of `Evaluator`s.

    Args:
        names: as above.
        max_bad_share: the share of the examples of their own datasets that may be unreadable.

    Raises:
        ValueError: a name is not a key of `EVALUATORS`, or several datasets are named for one that takes one.
    """
    return {name: _parse(name, max_bad_share) for name in names}


def _parse(text, max_bad_share):
    name, _, place = text.partition(":")
    words, _, path = place.partition("@")
    # "tfds:NAME" has a colon of its own, and the path of a file may have a plus.
    datasets = (words,) if words.endswith(".json") else tuple(word for word in words.split("+") if word)
    if name not in EVALUATORS:
        raise ValueError(f"The evaluators are {', '.join(EVALUATORS)}. Received: {text!r}")
    module = EVALUATORS[name]
    if len(datasets) > 1 and not hasattr(module, "metrics_of_datasets"):
        raise ValueError(f"{name} takes one dataset at a time. Received: {text!r}")
    if len(set(datasets)) < len(datasets):
        raise ValueError(f"The datasets must be different ones. Received: {text!r}")
    return Evaluator(text, module, datasets, path, max_bad_share)


def evaluate(model: keras.Model, names: Iterable[str], inputs: InputPipeline | None = None) -> dict[str, float]:
    """The metrics of several evaluators: a dict of floats, `<evaluator>/<metric>`.

    Args:
        model: a `keras.Model`.
        names: of the evaluators, as `get` takes them.
        inputs: the `data.InputPipeline` of those that name no dataset.

    Raises:
        ValueError: as `get` and `Evaluator.evaluate`.
    """
    metrics: dict[str, float] = {}
    for name, evaluator in get(names).items():
        values = evaluator.evaluate(model, inputs)
        metrics |= {f"{name}/{metric}": value for metric, value in values.items()}
    return metrics


__all__ = ["EVALUATORS", "Evaluator", "evaluate", "get", "load_inputs", "model_digest", "weights_digest"]
