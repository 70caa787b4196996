"""Masked patch prediction: predicts corrupted patches from the rest of the image, without labels."""

from typing import TYPE_CHECKING

import keras
from keras import ops
from ml_collections import ConfigDict

from keras_vit import families
from keras_vit.layers.dropout import StepSeeds, current_seeds, seed_scope
from keras_vit.models import VisionTransformer
from keras_vit.models.validation import patch_grid
from keras_vit.tasks.task import Batch, LossesAndMetrics, Task

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline

TARGETS = ("mean_color", "colors_4x4", "pixels")
_LEVELS = 8  # of a color: 3 bits
# Half the smallest difference between mean colors of patches of up to 32x32 pixels, on a scale of 0 to 255.
_HALF_RESOLUTION = 2**-11
_EVALUATION_KEY = (0, 0x5EED)  # evaluation always corrupts the same patches


class MaskedPatchPrediction(Task):
    """A Vision Transformer that predicts each corrupted patch of its image from the token of the patch.

    `config.model` has the arguments of `VisionTransformer`, without those of a head, and

    - `masking_rate`: the fraction of embeddings to corrupt, in (0, 1]; 0.5 in the paper;
    - `target`: "mean_color", the mean color of the patch as a class, with 3 bits per channel (512 classes for RGB);
      "colors_4x4", the same for a patch resized to 4x4; or "pixels", regression of all values.

    The loss is a mean over corrupted patches: cross-entropy in nats (for "colors_4x4" averaged over the 16 colors), or
    the squared error of values in [-1, 1]. `accuracy` is that of the same classes; "pixels" has none and needs
    `config.best_metric="loss"`. The bits of a color are `floor(value / 32)` of values from 0 to 255, red first.

    Labels are not used. To fine-tune a classifier, save the weights with `checkpoints.save` and set `config.weights`;
    only the mask embedding is not used.

    Raises:
        ValueError: the target is not known, or another argument does not fit the task.

    Reference: paper appendix B.1.2 and section 4.6. The paper does not specify two details: here, embeddings are
    corrupted before positions are added, and there is a class token unless `classifier="gap"`.
    """

    def __init__(self, config: ConfigDict) -> None:
        super().__init__(config)
        self.target = config.model.get("target", TARGETS[0])
        if self.target not in TARGETS:
            raise ValueError(f"`target` must be one of {', '.join(TARGETS)}. Received: target={self.target!r}")
        classifier = config.model.get("classifier", "token")
        if classifier not in ("token", "gap"):
            raise ValueError(
                f"`classifier` must be token, or gap for no class token. Received: classifier={classifier!r}"
            )
        rate = config.model.get("masking_rate", 0.5)
        if isinstance(rate, bool) or not 0 < rate <= 1:
            raise ValueError(
                "`config.model.masking_rate` must be in (0, 1], since the loss is that of corrupted patches. "
                f"Received: masking_rate={rate!r}"
            )
        self.metrics = () if self.target == "pixels" else ("accuracy",)
        self._mean: float | list[float] = 0.5
        self._std: float | list[float] = 0.5

    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        fields = {name: value for name, value in self.config.model.items() if name != "target"}
        arguments = families.constructor_arguments(families.find_family("VisionTransformer"), fields)
        image_shape = self.input_shape(inputs)
        preprocessing = inputs.model_preprocessing()
        if preprocessing is not None:
            white = 2**preprocessing.bit_depth - 1
            self._mean = [value / white for value in preprocessing.mean]
            self._std = [value / white for value in preprocessing.std]
        arguments |= {
            "input_shape": image_shape,
            "classifier": "unpooled" if arguments.get("classifier") == "gap" else "token_unpooled",
            "classes": self._outputs(image_shape),
            "masking_rate": arguments.get("masking_rate", 0.5),
            "preprocessing": preprocessing,
            "remat": self.config.remat,
        }
        return VisionTransformer(**arguments)

    def losses_and_metrics(self, model: keras.Model, batch: Batch, training: bool = False) -> LossesAndMetrics:
        images = batch[0]
        seeds = current_seeds()
        if seeds is None:
            seeds = StepSeeds(ops.convert_to_tensor(_EVALUATION_KEY, "uint32"))
        with seed_scope(seeds):
            outputs, corrupted = model(images, training=training)
        outputs = ops.cast(outputs, "float32")[:, -corrupted.shape[1] :]  # without the class token
        corrupted = ops.cast(corrupted, "float32")
        shares = corrupted / ops.sum(corrupted, axis=1, keepdims=True)  # (B, N)
        patches = self._patches(model, images)
        if self.target == "pixels":
            expected = ops.reshape(patches, ops.shape(outputs))
            return ops.sum(shares * ops.mean(ops.square(outputs - expected), axis=-1), axis=-1), {}
        classes = self._color_classes(patches)  # (B, N, colors)
        logits = ops.reshape(outputs, (*ops.shape(classes), -1))
        chosen = ops.take_along_axis(ops.log_softmax(logits, axis=-1), classes[..., None], axis=-1)[..., 0]
        right = ops.cast(ops.equal(ops.cast(ops.argmax(logits, axis=-1), "int32"), classes), "float32")
        losses = -ops.sum(shares * ops.mean(chosen, axis=-1), axis=-1)
        return losses, {"accuracy": ops.sum(shares * ops.mean(right, axis=-1), axis=-1)}

    def _outputs(self, image_shape):
        """Returns the number of outputs per token."""
        arguments = self.config.model
        rows, columns = patch_grid(image_shape, arguments["patch_size"], arguments.get("resnet_blocks") or None)
        height, width, channels = image_shape
        side = height // rows, width // columns
        if self.target == "pixels":
            return side[0] * side[1] * channels
        if channels > 4:
            raise ValueError(
                "Colors can be classes for up to 4 channels; use target='pixels' for more. "
                f"Received: target={self.target!r}, channels={channels}"
            )
        if self.target == "colors_4x4" and (side[0] % 4 or side[1] % 4):
            raise ValueError(
                "target='colors_4x4' needs patches whose sides are multiples of 4 pixels. "
                f"Received: patches of {side[0]}x{side[1]}"
            )
        return _LEVELS**channels * (16 if self.target == "colors_4x4" else 1)

    def _patches(self, model, images):
        """Returns the patches of images, `(B, N, P, Q, C)`, as the model reads them."""
        grid = model.grid
        height, width, channels = images.shape[1:]
        side = height // grid[0], width // grid[1]
        patches = ops.reshape(images, (-1, grid[0], side[0], grid[1], side[1], channels))
        return ops.reshape(ops.transpose(patches, (0, 1, 3, 2, 4, 5)), (-1, grid[0] * grid[1], *side, channels))

    def _color_classes(self, patches):
        """Returns the color classes of patches `(B, N, P, Q, C)`, or of 4x4 parts of each: int32 `(B, N, colors)`."""
        _, count, height, width, channels = patches.shape
        parts = 4 if self.target == "colors_4x4" else 1
        colors = ops.reshape(patches, (-1, count, parts, height // parts, parts, width // parts, channels))
        colors = ops.reshape(ops.mean(colors, axis=(3, 5)), (-1, count, parts * parts, channels))
        values = colors * ops.convert_to_tensor(self._std, "float32") + ops.convert_to_tensor(self._mean, "float32")
        # A mean of exactly 32 may be computed as 31.99999, depending on the backend.
        bits = ops.clip(ops.floor((255 * values + _HALF_RESOLUTION) / 32), 0, _LEVELS - 1)
        digits = [_LEVELS ** (channels - 1 - channel) for channel in range(channels)]
        return ops.cast(ops.sum(bits * ops.convert_to_tensor(digits, "float32"), axis=-1), "int32")
