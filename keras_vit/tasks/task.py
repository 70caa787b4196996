"""Base class of training tasks."""

import abc
import copy
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import keras
from ml_collections import ConfigDict

from keras_vit import families
from keras_vit.models.any_model import set_logits_activation

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline

Batch = tuple[keras.KerasTensor, keras.KerasTensor, keras.KerasTensor]
LossesAndMetrics = tuple[keras.KerasTensor, dict[str, keras.KerasTensor]]


class Task(abc.ABC):
    """Base class of training tasks. `losses_and_metrics` must use only Keras ops, so that every
    engine can run it.

    A batch is `(images, targets, example_weights)`: images, float32 `(B, H, W, C)`, in [-1, 1] for
    most models; targets `(B, ...)` of the kind `target`, such as float32 `(B, classes)`; example
    weights, float32 `(B,)`.

    Args:
        config: the config of the run.

    Attributes:
        target: name of the target kind that the task learns from, a key of `data.TARGETS`.
        metrics: names of the metrics other than "loss", in the order in which tables and plots show
            them.
        loads_weights: whether `build_model` loads `config.weights`, instead of the run.
        config: the config of the run.
        facts_of_weights: JSON-serializable dict of what the file of `config.weights` says about the
            model. A run stores it in its workdir, so that a resumed run does not need the file.
    """

    target: str = "classes"
    metrics: tuple[str, ...] = ()
    loads_weights: bool = False

    def __init__(self, config: ConfigDict) -> None:
        self.config = config
        self.facts_of_weights: dict[str, Any] = {}

    @staticmethod
    def target_arguments(config: ConfigDict) -> dict[str, Any]:
        """Returns further arguments of the target kind for a run with this config."""
        return {}

    def with_config(self, config: ConfigDict) -> "Task":
        """Returns a copy with another config.

        The constructor is not called, because that of a subclass may have other parameters.
        Attributes that it computed from the old config stay.
        """
        task = copy.copy(self)
        task.config = config
        return task

    @property
    def frozen_models(self) -> tuple[keras.Model, ...]:
        """Models that the loss reads and training does not change; checkpoints do not have them."""
        return ()

    def load_models(  # noqa: B027
        self, load: Callable[..., tuple[keras.Model, dict]], write: Callable[[str], object]
    ) -> None:
        """Loads `frozen_models` before the data are loaded.

        Args:
            load: `training.stored_models.load_any_model`.
            write: called with each line for the log.
        """

    def name_classes(
        self, inputs: "InputPipeline", write: Callable[[str], object]
    ) -> "InputPipeline":
        """Returns the inputs with the class names of the model, if the data have none."""
        return inputs

    @property
    def variants(self) -> "tuple[Task, ...]":
        """The variants of the training step, each compiled by itself; the first one needs the most
        memory."""
        return (self,)

    def variant_of_step(self, step: int) -> "Task":
        """Returns the variant that a step trains. It must depend only on the seed and the step."""
        return self

    @abc.abstractmethod
    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        """Builds the model of the config, with initial weights.

        Args:
            inputs: the `data.InputPipeline`, which determines the image shape, the classes and the
                preprocessing.

        Returns:
            A built `keras.Model` that takes images.
        """

    def make_model(self, inputs: "InputPipeline") -> keras.Model:
        """Builds the model, and records in it which activation belongs to its logits:
        `config.loss`."""
        model = self.build_model(inputs)
        set_logits_activation(model, self.config.loss)
        return model

    def _model_arguments(self, inputs, omit, of_weights=()):
        """Returns the arguments of the model, from `config.model` without the fields in `omit`,
        from `of_weights`, `config.remat` and the data."""
        architecture = self.config.architecture
        fields = {name: value for name, value in self.config.model.items() if name not in omit}
        family = families.find_family(architecture)
        arguments = families.constructor_arguments(family, fields) | dict(of_weights)
        if self.config.remat:
            arguments["remat"] = True
        preprocessing = inputs.model_preprocessing()
        arguments |= families.model_class(architecture).arguments_for(
            tuple(inputs.image_shape), arguments, preprocessing.layout
        )
        return {**arguments, "preprocessing": preprocessing}

    @abc.abstractmethod
    def losses_and_metrics(
        self, model: keras.Model, batch: Batch, training: bool = False
    ) -> LossesAndMetrics:
        """Computes the loss and the metrics of each example in a batch.

        The engine applies the example weights and computes the means. Draw random numbers as in
        `layers.dropout`: from `current_seeds()`, or from a `keras.random.SeedGenerator` if
        `current_seeds()` returns None.

        Args:
            model: the model returned by `build_model`.
            batch: `(images, targets, example_weights)`.
            training: whether the model runs in training mode.

        Returns: `(losses, metrics)`: float32 `(B,)`, and a dict from each name in `self.metrics` to
            float32 `(B,)`.
        """

    @property
    def evaluation_metrics(self) -> tuple[str, ...]:
        """The names of the metrics in `results` that `best_metric` may name."""
        return ("loss", *self.metrics)

    def evaluate(self, model: keras.Model, batch: Batch) -> dict[str, keras.KerasTensor]:
        """Returns the values of which an evaluation computes means, as a dict from each name to
        float32 `(B,)`."""
        losses, metrics = self.losses_and_metrics(model, batch, training=False)
        return {"loss": losses, **{name: metrics[name] for name in self.metrics}}

    def results(self, means: dict[str, float]) -> dict[str, float]:
        """Returns the metrics of an evaluation, given the means over the set and "examples"."""
        return means

    def export_options(self) -> dict[str, Any] | None:
        """Returns the arguments for `export.saved_model`, or None if training does not export this
        task's models."""
        return None


def check_rules(config, rules):
    """Raises a `ValueError` for the first rule that the fields of a config break.

    A rule is `(name, value, is_allowed, words)`: a field, its value, whether the task allows it,
    and words for the values that it allows.
    """
    for name, value, is_allowed, words in rules:
        if not is_allowed:
            raise ValueError(
                f"`config.{name}` must be {words} for {config.task}. Received: {name}={value!r}"
            )


def check_model_fields(config: ConfigDict, own_fields: Collection[str]) -> None:
    """Raises a `ValueError` if `config.model` has other fields than those of the architecture and
    `own_fields`, those of the task."""
    known = {*families.model_fields(config.architecture), *own_fields}
    unknown = sorted(set(config.model) - known)
    if unknown:
        raise ValueError(
            f"`config.model` has fields that architecture={config.architecture!r} does not have. "
            f"Received: {', '.join(unknown)}"
        )
