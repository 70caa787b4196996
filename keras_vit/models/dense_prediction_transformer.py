"""The Dense Prediction Transformer (DPT) and Depth Anything."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vit.layers.base import arguments_among, serializable
from keras_vit.layers.validation import (
    check_choice,
    check_positive_int,
    check_positive_ints,
    check_rate,
)
from keras_vit.models.dense import DenseVisionTransformer
from keras_vit.models.dense_prediction_head import DPTHead
from keras_vit.models.image_model import keep
from keras_vit.models.validation import refuse


@serializable
class DensePredictionTransformer(DenseVisionTransformer):
    """A Vision Transformer with a convolutional head that fuses four levels: DPT.

    The tokens of each level become a map of its own size. Starting with the last level, the maps
    are added, refined and enlarged.

    Args:
        predicts: "segmentation" or "depth".
        classes: number of classes; 1 for depth.
        level_channels: channels of the four maps before they are fused.
        features: channels of the fused maps.
        readout: what happens to the class token: "ignore"; "add", to every patch; "project",
            concatenated with every patch and projected.
        batch_norm: whether the residual units of the fusion contain BatchNorm. The head for
            segmentation always contains one.
        residual_bias: whether the convolutions of the residual units have biases; None for units
            without BatchNorm.
        match_levels: whether a map is resized to the size of the next level and finally of the
            image, as in Depth Anything. Otherwise its size is doubled, as in DPT.
        depth_projection: whether a further convolution precedes the head for depth.
        depth_features: channels of the last hidden layer for depth.
        max_depth: depth is a sigmoid multiplied by this number, as in metric Depth Anything; 0 for
            depth without a limit, by a ReLU.
        head_dropout: dropout rate before the last layer for segmentation, in [0, 1).
        **kwargs: arguments of `DenseVisionTransformer`, such as the four `levels`, by default the
            ends of four equal parts, and of `VisionTransformer`. Published DPT has
            `level_norm=False`.

    Returns:
        float32 logits `(B, h, w, classes)` or depth `(B, h, w)`. The size is 16 times the grid of
        patches if the grid is even. With `match_levels`, depth has the size of the image, and
        logits have 16 times the grid.

    Raises:
        ValueError: an argument is out of range, or the readout needs a class token that the model
            lacks.

    Reference: Ranftl et al., "Vision Transformers for Dense Prediction" (2021), and Yang et al.,
        "Depth Anything V2" (2024); matches transformers with the same weights.
    """

    def __init__(
        self,
        *,
        predicts: str = "segmentation",
        classes: int | None = None,
        level_channels: Sequence[int] = (96, 192, 384, 768),
        features: int = 256,
        readout: str = "ignore",
        batch_norm: bool = False,
        residual_bias: bool | None = None,
        match_levels: bool = False,
        depth_projection: bool = False,
        depth_features: int = 32,
        max_depth: float = 0.0,
        head_dropout: float = 0.1,
        name: str = "dense_prediction_transformer",
        **kwargs: Any,
    ) -> None:
        check_positive_ints("level_channels", level_channels, "four positive integers", 4)
        level_channels = tuple(level_channels)
        own = arguments_among(locals(), omit=("classes", "name"))
        _check(own, classes)
        keep(self, predicts=predicts, head_arguments=own)
        classes = 1 if predicts == "depth" else classes
        super().__init__(classes=classes, name=name, **kwargs)

    def default_levels(self, num_layers: int) -> tuple[int, ...]:
        return tuple(max(num_layers * part // 4, 1) for part in range(1, 5))

    def make_dense_head(self, arguments: Mapping[str, Any], policy: dict) -> keras.layers.Layer:
        if len(self.levels) != 4:
            raise ValueError(f"`levels` must be four block numbers. Received: levels={self.levels}")
        if arguments["readout"] != "ignore" and self.class_token is None:
            message = "`readout` must be ignore in a model without a class token."
            refuse(message, arguments, "readout", "classifier")
        return DPTHead(
            self.grid,
            tuple(arguments["input_shape"][:2]),
            self.num_prefix_tokens,
            arguments["classes"],
            name="head",
            **self.head_arguments,
            **policy,
        )


def _check(own, classes):
    """Raises a `ValueError` for invalid arguments of the head."""
    check_choice("predicts", own["predicts"], ("segmentation", "depth"))
    check_choice("readout", own["readout"], ("ignore", "add", "project"))
    check_positive_int("features", own["features"])
    check_positive_int("depth_features", own["depth_features"])
    check_rate("head_dropout", own["head_dropout"])
    if own["predicts"] == "depth" and classes not in (None, 1):
        raise ValueError(f"`classes` must be 1 for depth. Received: {classes=}")
    if not own["max_depth"] >= 0 or (own["max_depth"] and own["predicts"] != "depth"):
        message = "`max_depth` must be 0 or more, and 0 in a model for segmentation."
        refuse(message, own, "max_depth", "predicts")
