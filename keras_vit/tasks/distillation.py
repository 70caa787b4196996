"""Distillation: a small model learns to imitate a large one that is not trained."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops
from ml_collections import ConfigDict

from keras_vit import losses
from keras_vit.layers.tokens import DistilledHead
from keras_vit.models.any_model import image_shape_of
from keras_vit.models.replaced_forward import replacement_of
from keras_vit.preprocessing import preprocessing_of
from keras_vit.tasks import teachers
from keras_vit.tasks.classification import Classification
from keras_vit.tasks.task import Batch, LossesAndMetrics, check_rules

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline

LOSSES = ("kl", "hard", "cosine", "squared_error")
_OF_FEATURES = ("cosine", "squared_error")


class Distillation(Classification):
    """A student, the model of `config.architecture`, imitates the teacher `config.teacher`.

    Student and teacher see the same pixels: those of the student's crop, flip and mixup. They are
    normalized as each model expects, and resized if the sizes differ. The teacher has neither
    dropout nor gradients. It is not part of the checkpoints, and computes in `config.precision` if
    it is a model of keras_vit.

    `config.distillation` has the fields of this task:

    - `loss`: "kl" is the Kullback-Leibler divergence of the student's classes from the teacher's,
      both with their logits divided by `temperature`; it is multiplied by the square of
      `temperature`. "hard" is the cross-entropy of the teacher's class. "cosine" is 1 minus the
      cosine of the features of both models, and "squared_error" is the mean squared difference of
      their features. Features are the input of a model's head, or the output of a model without a
      head. If the student's features have another width, a linear layer projects them, which is
      its head.
    - `labels`: whether the images have classes. With False, the student has the teacher's classes.
    - `label_weight`: share `w` of the labels in the loss, which is
      `(1 - w) * imitation + w * cross_entropy`. The loss of an image without a label is
      `imitation`, and its accuracy is 1 if the student agrees with the teacher.
    - `teacher_size`: image size of a teacher that `from_pretrained` loads, in pixels.

    A student with a distillation token imitates the teacher's logits with that token's head, and
    learns the labels with the class token's head. `agreement` is the share of images for which
    student and teacher predict the same class.

    Raises:
        ValueError: a field is out of range or does not fit the others.

    References: Hinton et al., "Distilling the Knowledge in a Neural Network"; Beyer et al.,
        "Knowledge distillation: A good teacher is patient and consistent"; `proj/distill` in
        big_vision; Touvron et al., DeiT.
    """

    def __init__(self, config: ConfigDict) -> None:
        super().__init__(config)
        fields = config.distillation
        self._imitates_features = fields.loss in _OF_FEATURES
        self.target = "classes" if _uses_labels(config) else "none"
        agreement: tuple[str, ...] = () if self._imitates_features else ("agreement",)
        self.metrics = ("accuracy", *agreement) if _uses_labels(config) else agreement
        self._teacher: Any = None
        self._head: dict[str, Any] = {}  # the model arguments of the student's head
        self._check_fields()

    def _check_fields(self):
        """Raises a `ValueError` if a field of the config is out of range or does not fit the
        others."""
        config = self.config
        fields = config.distillation
        is_distilled = config.model.get("distilled", False)
        own_rules = [
            ("loss", fields.loss in LOSSES, f"one of {', '.join(LOSSES)}"),
            ("temperature", 0 < fields.temperature < np.inf, "finite and above 0"),
            ("temperature", fields.loss == "kl" or fields.temperature == 1, "1 without kl"),
            ("label_weight", 0 <= fields.label_weight < 1, "in [0, 1)"),
            (
                "label_weight",
                _uses_labels(config) or not fields.label_weight,
                "0 without labels, and for a loss of features",
            ),
            (
                "label_weight",
                not is_distilled or self._imitates_features or fields.label_weight,
                "above 0 for a student with a distillation token, whose class token learns "
                "from labels only",
            ),
        ]
        rules = [
            ("teacher", config.teacher, bool(config.teacher), "the model to imitate"),
            ("loss", config.loss, config.loss == "softmax", "softmax"),
            *((f"distillation.{name}", fields[name], *rule) for name, *rule in own_rules),
        ]
        check_rules(config, rules)

    @staticmethod
    def target_arguments(config: ConfigDict) -> dict[str, Any]:
        # An image without a label keeps weight 1.
        return {"empty_is_negative": True, "one_label": True} if _uses_labels(config) else {}

    @property
    def frozen_models(self) -> tuple[keras.Model, ...]:
        return () if self._teacher is None else (self._teacher,)

    def load_models(
        self, load: Callable[..., tuple[keras.Model, dict]], write: Callable[[str], object]
    ) -> None:
        source = self.config.teacher
        model, details = load(source, self.config.distillation.teacher_size, write)
        if not self._imitates_features:
            teachers.check_logits(model, source)
        width = teachers.width_of(self._imitated(model), source)
        digest = teachers.digest_of(model)
        before = self.facts_of_weights.get("teacher", {}).get("digest", digest)
        if digest != before:
            raise ValueError(
                "The teacher has changed since the run began: its weights, image size or "
                "preprocessing differ. Restore it, or choose another workdir. Received: "
                f"teacher={source!r} with digest {digest[:12]} instead of {before[:12]}"
            )
        names = tuple(map(str, details.get("class_names") or ()))
        facts = {"digest": digest, "outputs": width, "class_names": names}
        self.facts_of_weights["teacher"] = facts
        self._teacher = model
        write(
            f"teacher: {source}, {model.count_params():,} parameters, images of "
            f"{'x'.join(map(str, image_shape_of(model)))}, {width} outputs, digest {digest[:12]}"
        )

    def _imitated(self, model):
        """Returns the part of a teacher whose outputs the student imitates."""
        return teachers.without_head(model) if self._imitates_features else model

    def name_classes(
        self, inputs: "InputPipeline", write: Callable[[str], object]
    ) -> "InputPipeline":
        if self._imitates_features:
            return inputs
        facts = self.facts_of_weights["teacher"]
        known = tuple(facts["class_names"])
        if self.target == "classes":
            names = tuple(map(str, inputs.train.class_names))
            teachers.compare_classes(names, known, self.config.teacher, write)
            return inputs
        names = known or tuple(f"class {number}" for number in range(facts["outputs"]))
        train, test = (
            dataclasses.replace(source, class_names=names) for source in (inputs.train, inputs.test)
        )
        return dataclasses.replace(inputs, train=train, test=test)

    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        if self._teacher is not None:
            self._teacher = self._imitated(teachers.copy_of(self._teacher, self.config.precision))
        width = self.facts_of_weights["teacher"]["outputs"]
        self._head = {"include_top": False} if self._imitates_features else {"classes": width}
        model = super().build_model(inputs)
        if self._imitates_features and model.output_shape != (None, width):
            self._head = {"classes": width}
            model = super().build_model(inputs)
            # The head's zeros have no direction. With a distillation token, it has two kernels.
            for weight in model.head.weights:
                if weight.name == "kernel":
                    weight.assign(keras.initializers.GlorotUniform()(weight.shape))
        if self._teacher is not None:
            self._check_images(model)
        return model

    def head_arguments(self, inputs: "InputPipeline") -> dict[str, Any]:
        width = self.facts_of_weights["teacher"]["outputs"]
        if self.target == "classes" and len(inputs.train.class_names) != width:
            raise ValueError(
                "The teacher must have the classes of the data, or set "
                "--config.distillation.loss=cosine to imitate its features, or "
                "--config.distillation.labels=false for a student with the teacher's classes. "
                f"Received: {len(inputs.train.class_names)} classes, "
                f"teacher={self.config.teacher!r} with {width}"
            )
        return self._head

    def _check_images(self, model):
        """Raises a `ValueError` unless the student's images can be converted to the teacher's."""
        own = preprocessing_of(model)
        theirs = preprocessing_of(self._teacher)
        if not (own.layout.has_one_size and theirs.layout.has_one_size):
            raise ValueError(
                "Student and teacher must take images of one size. Received: "
                f"architecture={self.config.architecture!r}, teacher={self.config.teacher!r}"
            )
        if own.channels not in (1, theirs.channels):
            raise ValueError(
                f"`data.channels` must be 1 or that of the teacher, {theirs.channels}. Received: "
                f"channels={own.channels}"
            )

    def losses_and_metrics(
        self, model: keras.Model, batch: Batch, training: bool = False
    ) -> LossesAndMetrics:
        images, labels, _ = batch
        fields = self.config.distillation
        images_of_teacher = teachers.images_for(self._teacher, images, preprocessing_of(model))
        theirs = self._teacher(images_of_teacher, training=False)
        theirs = ops.stop_gradient(ops.cast(theirs, "float32"))
        if self._imitates_features:
            features = ops.cast(model(images, training=training), "float32")
            return difference(fields.loss, theirs, features), {}
        own, imitating = (ops.cast(x, "float32") for x in _logits(model, images, training))
        losses = difference(fields.loss, theirs, imitating, fields.temperature)
        logits = (own + imitating) / 2
        agrees = ops.equal(ops.argmax(logits, axis=-1), ops.argmax(theirs, axis=-1))
        metrics = {"agreement": ops.cast(agrees, "float32")}
        if self.target == "none":
            return losses, metrics
        is_labeled = ops.any(labels > 0, axis=-1)
        share = ops.where(is_labeled, fields.label_weight, 0.0)
        losses = (1 - share) * losses + share * self.loss(labels, own)
        accuracy = self.label_losses(labels, logits, training)[1]["accuracy"]
        metrics["accuracy"] = ops.where(is_labeled, accuracy, metrics["agreement"])
        return losses, metrics

    def export_options(self) -> dict[str, Any] | None:
        return None if self._imitates_features else {}


def difference(
    loss: str, teacher: keras.KerasTensor, student: keras.KerasTensor, temperature: float = 1.0
) -> keras.KerasTensor:
    """Computes the difference of a student's outputs from a teacher's.

    Args:
        loss: a member of `LOSSES`.
        teacher, student: float32 `(B, N)`: logits, or features for "cosine" and "squared_error".
        temperature: divides both logits for "kl".

    Returns:
        A float32 tensor `(B,)`.
    """
    if loss == "cosine":
        return 1 - ops.sum(ops.normalize(teacher) * ops.normalize(student), axis=-1)
    if loss == "squared_error":
        return ops.mean(ops.square(teacher - student), axis=-1)
    if loss == "hard":
        classes = ops.one_hot(ops.argmax(teacher, axis=-1), teacher.shape[-1])
        return losses.softmax(classes, student)
    own = ops.log_softmax(student / temperature, axis=-1)
    theirs = ops.log_softmax(teacher / temperature, axis=-1)
    return temperature**2 * ops.sum(ops.exp(theirs) * (theirs - own), axis=-1)


def _uses_labels(config):
    """Returns whether the student has the classes of the data."""
    fields = config.distillation
    return fields.labels and fields.loss not in _OF_FEATURES


def _logits(model, images, training):
    """Returns the logits that learn from labels and those that imitate, which differ in a model
    with a distillation token."""
    head = getattr(model, "head", None)
    if not isinstance(head, DistilledHead):
        return (model(images, training=training),) * 2
    if replacement_of(model).function is not None:
        raise ValueError(
            "A student with a distillation token cannot change its patch size. Received: "
            f"model={model.name!r}"
        )
    return head.both(keras.Model(model.input, head.input)(images, training=training))
