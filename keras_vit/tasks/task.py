"""The base class of tasks."""

import abc
from typing import TYPE_CHECKING, Any

import keras
from ml_collections import ConfigDict

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline

Batch = tuple[keras.KerasTensor, keras.KerasTensor, keras.KerasTensor]
LossesAndMetrics = tuple[keras.KerasTensor, dict[str, keras.KerasTensor]]


class Task(abc.ABC):
    """A learning task. Its methods use only `keras.ops`, so that every engine can run them.

    A batch is `(images, labels, example_weights)`: float32 `(B, H, W, C)`, in [-1, 1] for most models; float32 `(B,
    classes)`; float32 `(B,)`.

    Args:
        config: the config of the run.

    Attributes:
        metrics: the names of the metrics, without "loss", in the order of tables and plots.
        config: the config of the run.
    """

    metrics: tuple[str, ...] = ()

    def __init__(self, config: ConfigDict) -> None:
        self.config = config

    @abc.abstractmethod
    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        """Returns the model of the config, with its initial weights.

        Args:
            inputs: the `data.InputPipeline`, which has the shape of the images, the classes and the preprocessing.

        Returns:
            A built `keras.Model`; its input is the images.
        """

    def input_shape(self, inputs: "InputPipeline") -> tuple[int, int, int]:
        """Returns the shape of the model's images: `config.model.input_shape`, or else that of the data."""
        return tuple(self.config.model.get("input_shape") or inputs.image_shape)

    @abc.abstractmethod
    def losses_and_metrics(self, model: keras.Model, batch: Batch, training: bool = False) -> LossesAndMetrics:
        """Computes the loss and the metrics of each example of a batch.

        The engine applies the example weights and computes the means. Random numbers must be drawn as in
        `layers.dropout`: from `current_seeds()`, or from a `keras.random.SeedGenerator` if that is None.

        Returns:
            `(losses, metrics)`: float32 `(B,)`, and a dict of float32 `(B,)` with the names in `metrics`.
        """

    def export_options(self) -> dict[str, Any] | None:
        """Returns arguments for `export.saved_model`, or None if training does not export the models of this task."""
        return None
