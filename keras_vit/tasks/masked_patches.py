"""Masked patch prediction, which trains without labels: the model predicts corrupted patches of an
image."""

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops
from ml_collections import ConfigDict

from keras_vit import families
from keras_vit.layers.dropout import StepSeeds, current_seeds, seed_scope
from keras_vit.models import VisionTransformer
from keras_vit.models.masked_patches import MaskedPatchVisionTransformer
from keras_vit.models.validation import patch_grid
from keras_vit.tasks.task import Batch, LossesAndMetrics, Task, check_model_fields

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline

TARGETS = ("mean_color", "colors_4x4", "pixels")
_LEVELS = 8  # levels per color channel, 3 bits
# Half the smallest difference between two mean colors (0 to 255) of patches with up to 32x32
# pixels.
_HALF_RESOLUTION = 2**-11
_EVALUATION_KEY = (0, 0x5EED)  # every evaluation corrupts the same patches


class MaskedPatchPrediction(Task):
    """Masked patch prediction: a Vision Transformer predicts each corrupted patch from the patch's
    output token.

    `config.model` contains the arguments of `VisionTransformer`, except for the head. Two fields
    are specific to this task:

    - `masking_rate`: fraction of patch embeddings to corrupt, in (0, 1]; 0.5 in the paper.
    - `target`: "mean_color" classifies the mean color of the patch, quantized to 3 bits per channel
      (512 classes for RGB); "colors_4x4" does the same for each color of the patch resized to 4x4;
      "pixels" regresses all pixel values.

    The loss is averaged over corrupted patches. For "mean_color" and "colors_4x4", it is the mean
    cross-entropy of the colors of a patch, in nats. For "pixels", it is the mean squared error of
    the normalized pixel values. `accuracy` is the fraction of correct colors. "pixels" has no
    accuracy, so set `config.best_metric="loss"`. The quantized value of a channel is
    `floor(value / 32)` for values from 0 to 255, and red contributes the most significant bits of
    the class.

    Images need no labels. To fine-tune a classifier, save the weights with `checkpoints.save` and
    set `config.weights` to that file; the classifier does not use the mask embedding.

    Raises:
        ValueError: the target is unknown, or another argument is invalid for this task.

    Reference: paper appendix B.1.2 and section 4.6. The paper leaves two details open: this task
        corrupts the embeddings before it adds position embeddings, and uses a class token unless
        `classifier="gap"`.
    """

    target = "none"

    def __init__(self, config: ConfigDict) -> None:
        super().__init__(config)
        if families.find_family(config.architecture).constructor is not VisionTransformer:
            raise ValueError(
                "`config.architecture` must be VisionTransformer or one of its sizes for masked "
                f"patch prediction. Received: architecture={config.architecture!r}"
            )
        check_model_fields(config, ("masking_rate", "target"))
        self.predicts = config.model.get("target", TARGETS[0])
        if self.predicts not in TARGETS:
            raise ValueError(
                f"`config.model.target` must be one of {', '.join(TARGETS)}. Received: "
                f"target={self.predicts!r}"
            )
        classifier = config.model.get("classifier", "token")
        if classifier not in ("token", "gap"):
            raise ValueError(
                "`config.model.classifier` must be token, or gap to omit the class token. "
                f"Received: classifier={classifier!r}"
            )
        if not 0 < config.model.get("masking_rate", 0.5) <= 1:
            raise ValueError(
                "`config.model.masking_rate` must be in (0, 1], because only corrupted patches "
                f"have a loss. Received: masking_rate={config.model.masking_rate!r}"
            )
        self.metrics = () if self.predicts == "pixels" else ("accuracy",)

    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        arguments = self._model_arguments(inputs, omit=("target",))
        arguments |= {
            "classifier": "unpooled" if arguments.get("classifier") == "gap" else "token_unpooled",
            "classes": self._outputs(arguments["input_shape"]),
        }
        return MaskedPatchVisionTransformer(**arguments)

    def losses_and_metrics(
        self, model: keras.Model, batch: Batch, training: bool = False
    ) -> LossesAndMetrics:
        images = batch[0]
        seeds = current_seeds() or StepSeeds(ops.convert_to_tensor(_EVALUATION_KEY, "uint32"))
        with seed_scope(seeds):
            outputs, corrupted = model(images, training=training)
        outputs = ops.cast(outputs, "float32")[:, -corrupted.shape[1] :]  # drop the prefix tokens
        corrupted = ops.cast(corrupted, "float32")
        shares = corrupted / ops.sum(corrupted, axis=1, keepdims=True)  # (B, N)

        def mean(values):
            """Returns the mean of values `(B, N, K)` over the corrupted patches, `(B,)`."""
            return ops.sum(shares * ops.mean(values, axis=-1), axis=-1)

        patches = self._patches(model, images)
        if self.predicts == "pixels":
            expected = ops.reshape(patches, ops.shape(outputs))
            return mean(ops.square(outputs - expected)), {}
        classes = self._color_classes(patches, model.preprocessing)  # (B, N, colors)
        logits = ops.reshape(outputs, (*ops.shape(classes), -1))
        log_probabilities = ops.log_softmax(logits, axis=-1)
        chosen = ops.take_along_axis(log_probabilities, classes[..., None], axis=-1)[..., 0]
        predicted = ops.cast(ops.argmax(logits, axis=-1), "int32")
        right = ops.cast(ops.equal(predicted, classes), "float32")
        return -mean(chosen), {"accuracy": mean(right)}

    def _outputs(self, image_shape):
        """Returns the number of model outputs per token."""
        arguments = self.config.model
        rows, columns = patch_grid(
            image_shape, arguments["patch_size"], arguments.get("resnet_blocks") or None
        )
        height, width, channels = image_shape
        sides = height // rows, width // columns
        if self.predicts == "pixels":
            return sides[0] * sides[1] * channels
        if channels > 4:
            raise ValueError(
                "`config.model.target` must be pixels for images with more than 4 channels. "
                f"Received: target={self.predicts!r}, channels={channels}"
            )
        if self.predicts == "colors_4x4" and (sides[0] % 4 or sides[1] % 4):
            raise ValueError(
                "`patch_size` must be a multiple of 4 for target='colors_4x4'. "
                f"Received: patches of {sides[0]}x{sides[1]}"
            )
        return _LEVELS**channels * (16 if self.predicts == "colors_4x4" else 1)

    def _patches(self, model, images):
        """Splits images into patches `(B, N, P, Q, C)`, in the order of the model's tokens."""
        rows, columns = model.grid
        height, width, channels = images.shape[1:]
        sides = height // rows, width // columns
        patches = ops.reshape(images, (-1, rows, sides[0], columns, sides[1], channels))
        patches = ops.transpose(patches, (0, 1, 3, 2, 4, 5))
        return ops.reshape(patches, (-1, rows * columns, *sides, channels))

    def _color_classes(self, patches, preprocessing):
        """Returns the int32 color classes `(B, N, colors)` of patches `(B, N, P, Q, C)`; `colors`
        is 1 or 16."""
        _, count, height, width, channels = patches.shape
        parts = 4 if self.predicts == "colors_4x4" else 1
        colors = ops.reshape(
            patches, (-1, count, parts, height // parts, parts, width // parts, channels)
        )
        colors = ops.reshape(ops.mean(colors, axis=(3, 5)), (-1, count, parts * parts, channels))
        white = 2**preprocessing.bit_depth - 1
        mean, std = (
            np.divide(x, white).astype("float32") for x in (preprocessing.mean, preprocessing.std)
        )
        values = colors * std + mean
        # On some backends, a mean of exactly 32 is computed as 31.99999.
        levels = ops.clip(ops.floor((255 * values + _HALF_RESOLUTION) / 32), 0, _LEVELS - 1)
        place_values = _LEVELS ** np.arange(channels)[::-1]
        return ops.cast(ops.sum(levels * place_values.astype("float32"), axis=-1), "int32")
