"""Image classification: one correct class per image (softmax), or any number of correct classes
(sigmoid)."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import keras
from keras import ops
from ml_collections import ConfigDict

from keras_vit import families, losses
from keras_vit.checkpoints import inference, published
from keras_vit.families import dense_heads
from keras_vit.tasks.task import Batch, LossesAndMetrics, Task, check_model_fields

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline

# Model arguments that fine-tuning may change, in addition to those that the data determine.
_FREE = ("position_resampling", "classes", "include_top", "representation_size", "width")
# Model arguments whose values in the config may differ from those of the weights.
_MAY_DIFFER = ("classifier", "layer_scale")


class Classification(Task):
    """Image classification with a model of `config.architecture`.

    `config.model` contains the arguments of the architecture. If `config.weights` is a path, URL or
    Hub repository, the file determines most of the arguments that are left at their defaults. A
    published name determines no arguments. `config.loss` is "softmax" for labels that sum to 1, or
    "sigmoid" for any number of correct classes.

    The predicted class is the class with the largest logit. In evaluation, a prediction is correct
    if the label of the predicted class is above 0, so any of several correct classes counts. In
    training, labels may be mixed or smoothed, so a prediction is correct only if the predicted
    class has the largest label of the image. With "sigmoid", an image may have no correct class;
    the prediction is then correct if no logit is above 0. With "softmax", such an image has weight
    0.

    Raises:
        ValueError: the loss or the architecture is unknown, or `config.model` has an unknown field,
            a size that contradicts the architecture, or a classifier that returns logits for every
            token; or `remat` is set for an architecture without Transformer blocks.
    """

    metrics: tuple[str, ...] = ("accuracy",)
    head_fields: Collection[str] = ()  # fields of `config.model` that the architecture lacks

    def __init__(self, config: ConfigDict) -> None:
        super().__init__(config)
        self.loss = losses.get(config.loss)
        self.family = families.find_family(config.architecture)
        self.constructor: Callable[..., keras.Model] = self.family.constructor
        check_model_fields(config, self.head_fields)
        sizes = self.family.sizes.get(families.canonical_name(config.architecture), {})
        fields = config.model.to_dict()
        for name, value in sizes.items():
            if fields.get(name, value) != value:
                raise ValueError(
                    f"`config.model.{name}` must be {value} for {config.architecture}; for another "
                    f"size, set `--config.architecture={self.family.constructor.__name__}`. "
                    f"Received: {name}={fields[name]}"
                )
        if config.model.get("classifier", "").endswith("unpooled"):
            raise ValueError(
                "`config.model.classifier` must be token, gap, token_gap or map, which return one "
                f"row of logits per image. Received: classifier={config.model.classifier!r}"
            )
        if config.remat and "remat" not in families.parameters_of(self.family.constructor):
            raise ValueError(
                "`remat` must be False for an architecture without Transformer blocks. "
                f"Received: remat=True, architecture={config.architecture!r}"
            )

    @staticmethod
    def target_arguments(config: ConfigDict) -> dict[str, Any]:
        is_sigmoid = config.loss == "sigmoid"
        return {"empty_is_negative": is_sigmoid, "one_label": not is_sigmoid}

    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        of_weights = self._arguments_of_weights()
        arguments = self._model_arguments(inputs, self.head_fields, of_weights)
        return self.constructor(**arguments | self.head_arguments(inputs))

    def head_arguments(self, inputs: "InputPipeline") -> dict[str, Any]:
        """Returns the model arguments that determine the head."""
        names = inputs.train.class_names
        empty_is_negative = getattr(inputs.train, "empty_is_negative", True)
        may_be_negative = self.config.loss == "sigmoid" and empty_is_negative
        if len(names) < 2 and not may_be_negative:
            raise ValueError(
                "The data must have at least two classes, unless images may have no class, as in "
                f"multi-label data with `loss='sigmoid'`. Received: classes={names}"
            )
        return {"classes": len(names)}

    def _arguments_of_weights(self):
        """Returns the model arguments in the file of `config.weights` that the config leaves at
        their defaults."""
        weights = self.config.weights
        if not weights or published.is_name(weights):
            return {}
        defaults = families.model_fields(self.family.constructor.__name__)
        if "constructor" not in self.facts_of_weights:
            self.facts_of_weights |= self._read_facts(defaults)
        constructor = self.facts_of_weights["constructor"]
        if constructor != self.family.constructor.__name__:
            raise ValueError(
                f"`config.architecture` must be {constructor} or one of its sizes, to match "
                f"`config.weights`. Received: architecture={self.config.architecture!r}, "
                f"weights={weights!r}"
            )
        free = (*_FREE, *families.model_class(self.config.architecture).set_by_data)
        result = {}
        for name, value in self.facts_of_weights["arguments"].items():
            if name in free or str(value).endswith("unpooled"):
                continue
            ours = self.config.model.get(name, defaults[name])
            ours = ours.to_dict() if hasattr(ours, "to_dict") else ours
            if ours == defaults[name]:
                result[name] = value
            elif ours != value and name not in _MAY_DIFFER:
                raise ValueError(
                    f"`config.model.{name}` must be {value}, to match `config.weights`, or be left "
                    f"at its default. Received: {name}={ours}, weights={weights!r}"
                )
        if result.get("resnet_blocks") is not None:
            result["stem"] = "resnet"
        return result

    def _read_facts(self, fields):
        """Returns the constructor of the file's model, and those of its arguments that are in
        `fields`, as a dict."""
        # If the architecture has no attention heads, pass any number, so that the constructors can
        # be compared.
        has_heads = "num_heads" in families.model_fields(self.config.architecture)
        num_heads = self.config.model.get("num_heads", None if has_heads else 1)
        family, arguments = inference.find_arguments(self.config.weights, num_heads)
        arguments = {name: value for name, value in arguments.items() if name in fields}
        name = family.constructor.__name__
        if name in {model.__name__ for model, _ in dense_heads.HEADS.values()}:
            name = "VisionTransformer"  # the backbone of the file's model
        return {"constructor": name, "arguments": arguments}

    def losses_and_metrics(
        self, model: keras.Model, batch: Batch, training: bool = False
    ) -> LossesAndMetrics:
        images, labels, _ = batch
        return self.label_losses(labels, model(images, training=training), training)

    def label_losses(
        self, labels: keras.KerasTensor, logits: keras.KerasTensor, training: bool
    ) -> LossesAndMetrics:
        """Returns `losses_and_metrics` for labels and logits `(B, classes)`."""
        answer = ops.argmax(logits, axis=-1, keepdims=True)
        label_of_answer = ops.take_along_axis(labels, answer, axis=-1)[:, 0]
        right = label_of_answer > 0
        if training:
            right &= ops.equal(label_of_answer, ops.max(labels, axis=-1))
        if self.config.loss == "sigmoid":
            right |= ops.all(labels <= 0, axis=-1) & ops.all(logits <= 0, axis=-1)
        return self.loss(labels, logits), {"accuracy": ops.cast(right, "float32")}

    def export_options(self) -> dict[str, Any] | None:
        return {}
