"""Images to classes: one right class (softmax), or any number of them (sigmoid)."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
from keras import ops
from ml_collections import ConfigDict

from keras_vit import checkpoints, losses
from keras_vit.models import AxialResNet, AxialVisionTransformer, BiTResNet, VisionTransformer
from keras_vit.models.shapes import set_logits_activation
from keras_vit.tasks.task import Task

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline


class Classification(Task):
    """A Vision Transformer that classifies images.

    `config.model` holds the arguments of `VisionTransformer`. `config.loss` is "softmax" for one right class, or
    shares of several that sum to 1, or "sigmoid" for any number of right classes. In evaluation an answer, the class of
    the largest logit, is right if its label is above 0: of several right classes any will do. In training, where labels
    may be mixed or smoothed, it is right if its label is the largest.

    Raises:
        ValueError: the loss is not known, or `config.model` has a field that the architecture does not take, or a
            classifier that gives logits of every token.
    """

    metrics = ("accuracy",)
    architecture: Callable[..., keras.Model] = staticmethod(VisionTransformer)

    def __init__(self, config: ConfigDict) -> None:
        super().__init__(config)
        self.loss = losses.get(config.loss)
        unknown = sorted(set(config.model) - set(inspect.signature(self.architecture).parameters))
        if unknown:
            raise ValueError(
                f"The models of the task {config.task!r} do not take these fields of `config.model`; another page, or "
                f"another `task`, may. Received: {', '.join(unknown)}"
            )
        if config.model.get("classifier", "").endswith("unpooled"):
            raise ValueError(
                "`classifier` must give one row of logits per image: token, gap or map. "
                f"Received: classifier={config.model.classifier!r}"
            )

    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        return self._with_activation(self.architecture(**self._arguments(inputs), remat=self.config.remat))

    def _with_activation(self, model):
        set_logits_activation(model, self.config.loss)
        return model

    def _arguments(self, inputs):
        return {
            **self.config.model,
            **self._numerics_of_weights(),
            "input_shape": self._input_shape(inputs.image_shape),
            "classes": len(inputs.train.class_names),
            "preprocessing": inputs.model_preprocessing(),
        }

    def _numerics_of_weights(self):
        """`exact_gelu` and `epsilon` of the model whose weights are loaded.

        Raises:
            ValueError: a field of the config has a value that is neither its default nor that of the weights.
        """
        fields = inspect.signature(self.architecture).parameters
        numerics = checkpoints.find_numerics(self.config.weights) if self.config.weights else {}
        for name, value in numerics.items():
            if self.config.model.get(name, value) not in (value, fields[name].default):
                raise ValueError(
                    f"`config.model.{name}` must be {value}, as `config.weights` was trained, or its default. "
                    f"Received: {name}={self.config.model[name]}, weights={self.config.weights!r}"
                )
        return numerics

    def losses_and_metrics(
        self,
        model: keras.Model,
        batch: tuple[keras.KerasTensor, keras.KerasTensor, keras.KerasTensor],
        training: bool = False,
    ) -> tuple[keras.KerasTensor, dict[str, keras.KerasTensor]]:
        images, labels, _ = batch
        logits = model(images, training=training)
        label_of_answer = ops.take_along_axis(labels, ops.argmax(logits, axis=-1, keepdims=True), axis=-1)[:, 0]
        right = label_of_answer > 0
        if training:
            right &= ops.equal(label_of_answer, ops.max(labels, axis=-1))
        return self.loss(labels, logits), {"accuracy": ops.cast(right, "float32")}

    def export_options(self) -> dict[str, Any] | None:
        return {}

    def _input_shape(self, image_shape):
        return tuple(self.config.model.get("input_shape") or image_shape)


class AxialClassification(Classification):
    """An Axial-ViT that classifies images: appendix D.6 of the paper.

    `config.model` holds the arguments of `AxialVisionTransformer`.

    Raises:
        ValueError: as `Classification`.
    """

    architecture = staticmethod(AxialVisionTransformer)


class ResNetClassification(Classification):
    """A BiT ResNet that classifies images: the paper's baseline, the ResNet rows of its Table 3.

    `config.model` holds the arguments of `BiTResNet`.

    Raises:
        ValueError: as `Classification`, or `config.remat` is set, which is for Transformer blocks.
    """

    architecture: Callable[..., keras.Model] = staticmethod(BiTResNet)

    def __init__(self, config: ConfigDict) -> None:
        super().__init__(config)
        if config.remat:
            raise ValueError("`remat` recomputes Transformer blocks, and a ResNet has none. Received: remat=True")

    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        return self._with_activation(self.architecture(**self._arguments(inputs)))


class AxialResNetClassification(ResNetClassification):
    """An AxialResNet that classifies images: appendix D.6 of the paper.

    `config.model` holds the arguments of `AxialResNet`.

    Raises:
        ValueError: as `ResNetClassification`.
    """

    architecture = staticmethod(AxialResNet)
