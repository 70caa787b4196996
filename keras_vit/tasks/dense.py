"""Dense prediction: segmentation, a class for each pixel, and depth, a distance for each pixel."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops
from ml_collections import ConfigDict

from keras_vit.families.dense_heads import FIELDS, HEADS
from keras_vit.models import VisionTransformer
from keras_vit.models.freezing import freeze
from keras_vit.models.resizing import resize_bilinear
from keras_vit.tasks.classification import Classification
from keras_vit.tasks.task import Batch, LossesAndMetrics, check_rules

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline

IGNORED = 255
# Smaller depths count as this depth in the loss, and smaller predictions also in `delta1`.
_SMALLEST_DEPTH = 1e-3


class DensePrediction(Classification):
    """Base class of tasks with a value for each pixel, on a Vision Transformer of
    `config.architecture`.

    `config.model` contains the arguments of the architecture, and those of the head: `head` is
    "linear" or "dpt"; `frozen` trains only the head; `levels` are the numbers of the blocks that
    the head reads, `()` for its default. The others are arguments of `LinearSegmenter` and
    `DensePredictionTransformer`. The outputs are resized to the size of the targets.

    Raises:
        ValueError: the head or the architecture is unknown or not supported, or a field of another
            head or task is set.
    """

    heads: Collection[str] = HEADS
    head_fields = FIELDS
    predicts = "segmentation"

    def __init__(self, config: ConfigDict) -> None:
        super().__init__(config)
        self.class_names: tuple[str, ...] = ()
        self.fields = {name: config.model.get(name, default) for name, default in FIELDS.items()}
        head = self.fields["head"]
        is_vit = self.constructor is VisionTransformer
        rules = [
            ("model.head", head, head in self.heads, " or ".join(self.heads)),
            ("architecture", config.architecture, is_vit, "a VisionTransformer"),
            ("patch_sizes", config.patch_sizes, not config.patch_sizes, "()"),
            ("loss", config.loss, config.loss == "softmax", "softmax"),
        ]
        check_rules(config, rules)
        self.constructor, self._fields_of_head = HEADS[head]
        for name, value in self.fields.items():
            if name not in ("head", "frozen", *self._fields_of_head) and value != FIELDS[name]:
                raise ValueError(
                    f"The head {head} has no `config.model.{name}`; leave it at {FIELDS[name]}. "
                    f"Received: {name}={value}"
                )

    @staticmethod
    def target_arguments(config: ConfigDict) -> dict[str, Any]:
        return {}

    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        model = super().build_model(inputs)
        if self.fields["frozen"]:
            freeze(model, "head", write=lambda line: None)
        return model

    def head_arguments(self, inputs: "InputPipeline") -> dict[str, Any]:
        self.class_names = tuple(map(str, inputs.train.class_names))
        arguments = {name: self.fields[name] for name in self._fields_of_head}
        arguments["levels"] = tuple(arguments["levels"]) or None
        if self.fields["head"] == "dpt":
            arguments |= {"predicts": self.predicts, "match_levels": True}
        return arguments

    def outputs(self, model: keras.Model, batch: Batch, training: bool) -> keras.KerasTensor:
        """Returns the outputs of a model at the size of the targets, float32 `(B, H, W, C)`."""
        images, targets, _ = batch
        outputs = ops.cast(model(images, training=training), "float32")
        outputs = outputs[..., None] if len(outputs.shape) == 3 else outputs
        return resize_bilinear(outputs, targets.shape[1:3], align_corners=False)


class Segmentation(DensePrediction):
    """Semantic segmentation: a class for each pixel.

    The loss of an image is the mean cross-entropy of its pixels, in nats, without ignored pixels.
    In training, `pixel_accuracy` is averaged over images. An evaluation counts the pixels of the
    whole set, and divides once. Its metrics are `pixel_accuracy`; `iou/<class>`, the intersection
    over union of a class; and `mean_iou`. `mean_iou` is the mean over the classes that occur or are
    predicted. Images have the size of batches; the evaluators `segmentation` and
    `segmentation_windows` count pixels at the size of each image.
    """

    target = "masks"
    metrics = ("pixel_accuracy",)

    @property
    def evaluation_metrics(self) -> tuple[str, ...]:
        return ("loss", "pixel_accuracy", "mean_iou")

    def head_arguments(self, inputs: "InputPipeline") -> dict[str, Any]:
        return {"classes": len(inputs.train.class_names), **super().head_arguments(inputs)}

    def losses_and_metrics(
        self, model: keras.Model, batch: Batch, training: bool = False
    ) -> LossesAndMetrics:
        logits = self.outputs(model, batch, training)
        losses, true, predicted, counts = _pixels(logits, batch[1])
        right = ops.cast(ops.equal(predicted, true), "float32") * counts
        return losses, {"pixel_accuracy": _mean(right, counts)}

    def evaluate(self, model: keras.Model, batch: Batch) -> dict[str, keras.KerasTensor]:
        logits = self.outputs(model, batch, training=False)
        losses, true, predicted, counts = _pixels(logits, batch[1])
        classes = logits.shape[-1]
        true = ops.one_hot(true, classes)
        predicted = ops.one_hot(predicted, classes) * counts[..., None]
        values = {"loss": losses}
        sums = {"both": predicted * true, "predicted": predicted, "true": true}
        for name, pixels in sums.items():
            numbers = ops.sum(pixels, axis=(1, 2))  # (B, classes)
            values |= {f"{name}/{label}": numbers[:, label] for label in range(classes)}
        return values

    def results(self, means: dict[str, float]) -> dict[str, float]:
        labels = range(len(self.class_names))
        # The means are sums of integers divided by the number of images.
        counts = {
            name: [round(means[f"{name}/{label}"] * means["examples"]) for label in labels]
            for name in ("both", "predicted", "true")
        }
        scores, ious = segmentation_scores(**counts)
        per_class = {f"iou/{name}": float(iou) for name, iou in zip(self.class_names, ious)}
        others = {name: mean for name, mean in means.items() if name.split("/")[0] not in counts}
        return {"loss": means["loss"], **scores, **per_class, **others}


class Depth(DensePrediction):
    """Depth estimation with the head "dpt": a distance for each pixel.

    The loss of an image is Eigen's scale-invariant loss, `mean(e ** 2) - mean(e) ** 2 / 2` for
    `e = log(d) - log(t)`, where d is the predicted and t the true depth of a pixel. Only pixels
    with a known depth count. The metrics are `abs_rel_error`, the mean of |d - t| / t; `rms_error`;
    and `delta1`, the share of pixels with max(d / t, t / d) < 1.25. Each is computed for each
    image, then averaged over images.

    Reference: Eigen et al., "Depth Map Prediction from a Single Image" (2014).
    """

    target = "depth"
    predicts = "depth"
    metrics = ("abs_rel_error", "rms_error", "delta1")
    heads = ("dpt",)

    def losses_and_metrics(
        self, model: keras.Model, batch: Batch, training: bool = False
    ) -> LossesAndMetrics:
        depths = self.outputs(model, batch, training)[..., 0]
        return depth_scores(depths, ops.cast(batch[1], "float32"))


def segmentation_scores(both, predicted, true):
    """Returns the scores of a set from its numbers of pixels of each class, `(classes,)`.

    Args:
        both: pixels of the class that are predicted as this class.
        predicted: pixels that are predicted as the class, without ignored ones.
        true: pixels of the class.

    Returns: `({"pixel_accuracy": ..., "mean_iou": ...}, ious)`: Python floats, and float64
        `(classes,)`, NaN for a class that neither occurs nor is predicted.
    """
    both, predicted, true = (np.asarray(counts, np.int64) for counts in (both, predicted, true))
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
        ious = both / (predicted + true - both)
        accuracy = both.sum() / true.sum()
    mean = np.nanmean(ious) if true.any() else np.nan
    return {"pixel_accuracy": float(accuracy), "mean_iou": float(mean)}, ious


def depth_scores(depths: keras.KerasTensor, targets: keras.KerasTensor) -> LossesAndMetrics:
    """Returns the losses and metrics of `Depth` for depths and targets `(B, H, W)`."""
    counts = ops.cast(targets > 0, "float32")
    safe = ops.where(targets > 0, targets, 1.0)
    positive = ops.maximum(depths, _SMALLEST_DEPTH)
    logs = (ops.log(positive) - ops.log(ops.maximum(safe, _SMALLEST_DEPTH))) * counts
    ratios = ops.maximum(positive / safe, safe / positive)
    differences = (depths - targets) * counts
    losses = _mean(ops.square(logs), counts) - 0.5 * ops.square(_mean(logs, counts))
    return losses, {
        "abs_rel_error": _mean(ops.absolute(differences) / safe, counts),
        "rms_error": ops.sqrt(_mean(ops.square(differences), counts)),
        "delta1": _mean(ops.cast(ratios < 1.25, "float32") * counts, counts),
    }


def _pixels(logits, labels):
    """Returns the loss of each image `(B,)`, and the class, the predicted class and the weight, 0
    or 1, of each pixel `(B, H, W)`."""
    labels = ops.cast(labels, "int32")
    counts = ops.cast(labels != IGNORED, "float32")
    # Avoid a gather, whose gradient would be a slow and inexact scatter on accelerators.
    chosen = ops.sum(ops.one_hot(labels, logits.shape[-1]) * logits, axis=-1)
    losses = (ops.logsumexp(logits, axis=-1) - chosen) * counts
    predicted = ops.cast(ops.argmax(logits, axis=-1), "int32")
    return _mean(losses, counts), labels, predicted, counts


def _mean(values, counts):
    """Returns the mean over the counted pixels of each image, `(B,)`; 0 without any."""
    return ops.sum(values, axis=(1, 2)) / ops.maximum(ops.sum(counts, axis=(1, 2)), 1.0)
