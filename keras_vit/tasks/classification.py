"""Images to classes: one right class (softmax), or any number of them (sigmoid)."""

from typing import TYPE_CHECKING, Any

import keras
from keras import ops
from ml_collections import ConfigDict

from keras_vit import families, losses
from keras_vit.checkpoints import inference, published
from keras_vit.models.any_model import set_logits_activation
from keras_vit.tasks.task import Batch, LossesAndMetrics, Task

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline

# Arguments that fine-tuning may choose otherwise than the weights had them.
_FREE = ("position_resampling", "classes", "include_top", "input_shape", "representation_size", "width", "max_patches")


class Classification(Task):
    """A model of `config.architecture` that classifies images.

    `config.model` holds the arguments of the architecture; `config.weights` may decide those that are at their
    defaults. `config.loss` is "softmax" for one right class, or shares of several that sum to 1, or "sigmoid" for any
    number of right classes. In evaluation an answer, the class of the largest logit, is right if its label is above 0:
    of several right classes any will do. In training, where labels may be mixed or smoothed, it is right if its label
    is the largest.

    Raises:
        ValueError: the loss or the architecture is not known, or `config.model` has a field that the architecture does
            not take, another size than the architecture's, or a classifier that gives logits of every token.
    """

    metrics = ("accuracy",)

    def __init__(self, config: ConfigDict) -> None:
        super().__init__(config)
        self.loss = losses.get(config.loss)
        self.family = families.find_family(config.architecture)
        fields = families.model_fields(config.architecture)
        unknown = sorted(set(config.model) - set(fields))
        if unknown:
            raise ValueError(
                f"The models of architecture={config.architecture!r} do not take these fields of `config.model`. "
                f"Received: {', '.join(unknown)}"
            )
        for name, value in self.family.sizes.get(families.canonical_name(config.architecture), {}).items():
            if config.model.get(name, value) != value:
                raise ValueError(
                    f"`config.model.{name}` is {value} in {config.architecture}; another size needs "
                    f"`--config.architecture={self.family.constructor.__name__}`. Received: {name}={config.model[name]}"
                )
        if config.model.get("classifier", "").endswith("unpooled"):
            raise ValueError(
                "`classifier` must give one row of logits per image: token, gap or map. "
                f"Received: classifier={config.model.classifier!r}"
            )
        if config.remat and "remat" not in families.parameters_of(self.family.constructor):
            raise ValueError(
                "`remat` recomputes Transformer blocks, which this architecture does not have. "
                f"Received: remat=True, architecture={config.architecture!r}"
            )

    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        arguments = families.constructor_arguments(self.family, self.config.model) | self._arguments_of_weights()
        arguments |= {"remat": True} if self.config.remat else {}
        shape, side = self.input_shape(inputs), arguments.get("patch_size") or 0
        if inputs.image_shape[1] == side**2 + 2:  # NaFlex
            arguments["max_patches"] = inputs.image_shape[0]
            shape = arguments.get("input_shape") or (16 * side, 16 * side, inputs.image_shape[2])
        elif arguments.get("max_patches"):
            raise ValueError(
                f"A NaFlex model needs its batches: --config.data.max_patches=256 --config.data.patch_size={side}. "
                f"Received: images of shape {inputs.image_shape}"
            )
        arguments |= {"input_shape": shape, "classes": len(inputs.train.class_names)}
        model = self.family.constructor(**arguments, preprocessing=inputs.model_preprocessing())
        set_logits_activation(model, self.config.loss)
        return model

    def _arguments_of_weights(self):
        """Returns the arguments that the file of `config.weights` shows and the config leaves at their defaults."""
        weights = self.config.weights
        if not weights or published.is_name(weights):
            return {}
        has_heads = "num_heads" in families.model_fields(self.config.architecture)  # or the message below is the better
        family, arguments = inference.find_arguments(
            weights, self.config.model.get("num_heads", None if has_heads else 1)
        )
        if family.constructor is not self.family.constructor:
            raise ValueError(
                f"`config.architecture` must be {family.constructor.__name__}, or a size of it, as `config.weights` "
                f"is. Received: architecture={self.config.architecture!r}, weights={weights!r}"
            )
        defaults, result = families.model_fields(self.family.constructor.__name__), {}
        for name, value in arguments.items():
            of_table = name == "input_shape" and arguments.get("max_patches")  # the positions' of NaFlex
            if (name in _FREE and not of_table) or name not in defaults or str(value).endswith("unpooled"):
                continue
            ours = self.config.model.get(name, defaults[name])
            ours = ours.to_dict() if hasattr(ours, "to_dict") else ours
            if ours == defaults[name]:
                result[name] = value
            elif ours != value and name not in ("classifier", "layer_scale"):  # another pooling, other initial values
                raise ValueError(
                    f"`config.model.{name}` must be {value}, as in `config.weights`, or left at its default. "
                    f"Received: {name}={ours}, weights={weights!r}"
                )
        if result.get("resnet_blocks") is not None:
            result["stem"] = "resnet"
        return result

    def losses_and_metrics(self, model: keras.Model, batch: Batch, training: bool = False) -> LossesAndMetrics:
        images, labels, _ = batch
        logits = model(images, training=training)
        label_of_answer = ops.take_along_axis(labels, ops.argmax(logits, axis=-1, keepdims=True), axis=-1)[:, 0]
        right = label_of_answer > 0
        if training:
            right &= ops.equal(label_of_answer, ops.max(labels, axis=-1))
        return self.loss(labels, logits), {"accuracy": ops.cast(right, "float32")}

    def export_options(self) -> dict[str, Any] | None:
        return {}
