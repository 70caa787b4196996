"""Applies a kind of evaluator to a model and a dataset."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_vit.data import InputPipeline
from keras_vit.evaluation.checks import check_class_names, check_classes
from keras_vit.evaluation.loading import load_inputs, splits_to_read
from keras_vit.models.any_model import image_shape_of
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

        Raises:
            ValueError: as in `check`.
        """
        loaded = self._inputs(model, inputs)
        self.kind.check(model, loaded)
        return self.kind.evaluate(model, loaded, engine if loaded is inputs else None)

    def _inputs(self, model, inputs):
        """Returns the data of the evaluation, which are `inputs` for an evaluator without its own
        dataset."""
        names = self.class_names or (() if inputs is None else inputs.test.class_names)
        if "train" in self.kind.splits:
            names = ()  # a classifier that is trained on features does not use the model's classes
        if self.dataset:
            return self._load(model, names)
        if inputs is None:
            raise ValueError(
                f"The evaluator needs a dataset, as in {self.name}:digits. Received: {self.name!r}"
            )
        check_class_names(names, inputs)
        return inputs

    def _load(self, model, names):
        """Loads the dataset, unless an evaluator with the same `_loaded` has it already.

        `names` are the classes of the model, or ().
        """
        splits = self.kind.splits
        of_model = image_shape_of(model), find_preprocessing(model)
        key = (self.dataset, self.path, splits, self.kind.load, *of_model, names)
        if key in self._loaded:
            return self._loaded[key]
        try:
            if self.dataset == "folder":
                splits = splits_to_read(self.path, splits, self.run)
            inputs = self.kind.load(
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
        check_class_names(names, inputs)
        self._loaded[key] = inputs
        return inputs
