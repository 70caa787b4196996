"""What every task is."""

import abc
from typing import TYPE_CHECKING, Any

import keras
from ml_collections import ConfigDict

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline

Batch = tuple[keras.KerasTensor, keras.KerasTensor, keras.KerasTensor]
LossesAndMetrics = tuple[keras.KerasTensor, dict[str, keras.KerasTensor]]


class Task(abc.ABC):
    """What is learned. The methods are pure `keras.ops`, so that every engine can run them.

    A batch is `(images, labels, example_weights)`: float32 `(B, H, W, C)`, in [-1, 1] for most models; float32 `(B,
    classes)`; float32 `(B,)`.

    Args:
        config: the recipe.

    Attributes:
        metrics: the names of the metrics, in the order in which tables and plots show them; without "loss".
        config: the recipe.
    """

    metrics: tuple[str, ...] = ()

    def __init__(self, config: ConfigDict) -> None:
        self.config = config

    @abc.abstractmethod
    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        """The model of the config, with its initial weights.

        Args:
            inputs: the `data.InputPipeline`, which knows the shape of the images, the classes and the preprocessing.

        Returns:
            A built `keras.Model`; its input is the images.
        """

    def input_shape(self, inputs: "InputPipeline") -> tuple[int, int, int]:
        """The shape of the model's images, `config.model.input_shape` or that of the data."""
        return tuple(self.config.model.get("input_shape") or inputs.image_shape)

    @abc.abstractmethod
    def losses_and_metrics(self, model: keras.Model, batch: Batch, training: bool = False) -> LossesAndMetrics:
        """Computes the losses of single examples, and whatever else is measured of each, from a model and a batch.

        The engine applies the example weights and takes the means. Random numbers are drawn as `layers.dropout` does:
        from `current_seeds()`, or from a `keras.random.SeedGenerator` if that is None.

        Returns:
            `(losses, metrics)`: float32 `(B,)`, and a dict of float32 `(B,)` by the names in `metrics`.
        """

    def export_options(self) -> dict[str, Any] | None:
        """What `export.saved_model` has to know of the task, a dict of its arguments; None where the models of the task
        are not exported by the main job."""
        return None
