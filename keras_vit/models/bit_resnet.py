"""The BiT ResNet ("Big Transfer"), the paper's baseline."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_vit import checkpoints, layers
from keras_vit.layers.base import serializable
from keras_vit.layers.resnet_stem import check_width
from keras_vit.layers.validation import check_choice, check_positive_int
from keras_vit.models.image_model import ImageModel, add_head, keep, kept_arguments
from keras_vit.preprocessing import Preprocessing

# Number of units in each stage of a ResNet, by depth. Depth 8 is for small images: its stride is 8
# instead of 32.
BIT_UNITS = {
    8: (1, 1),
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}


@serializable
class BiTResNet(ImageModel):
    """A BiT ResNet: images `(B, H, W, C)` in [-1, 1] to logits `(B, classes)`.

    Args:
        depth: 26, 50, 101, 152 or 200, or 8 (two stages, for small images).
        width_factor: multiplier for the channels of every layer.
        width: output channels of the root convolution before scaling by `width_factor`; a multiple
            of 32. All published sizes use 64.
        version: 2 for pre-activation units, as in the published weights, or 1 for the
            post-activation units of the R+ViT hybrids.
        pool_padding: padding of the root's max-pool in version 2, "zeros" (as the published weights
            were trained) or "minus_infinity" (as in big_vision). Ignored in version 1.
        input_shape: `(height, width, channels)`, the sides in pixels; any size and any number of
            channels.
        weights: source for `checkpoints.load`: "bit_s", "bit_m", "bit_m+imagenet2012", "bit:<file
            name>", a path or a URL; None for random weights. Every array must match, including the
            head.
        classes, include_top, head_bias, classifier_activation, preprocessing, name, dtype: see
            `VisionTransformer`.

    Returns: float32 logits `(B, classes)`. With `include_top=False`, the spatial mean of the last
        feature map in the compute dtype; its shape is `(B, 2048 * width_factor)` for the default
        width and four stages.

    Attributes:
        arguments, image_shape, preprocessing, head: see `ImageModel`.
        resnet: the layer between the input preprocessing and the pooling.

    Raises:
        ValueError: an argument is out of range, or the checkpoint does not match.

    Reference: Kolesnikov et al., "Big Transfer". Version 1 matches big_vision's `bit.py`; version 2
        with `pool_padding="minus_infinity"` matches `bit_paper.py`.
    """

    def __init__(
        self,
        *,
        depth: int,
        width_factor: int = 1,
        width: int = 64,
        version: int = 2,
        pool_padding: str = "zeros",
        input_shape: tuple[int, int, int] = (224, 224, 3),
        classes: int | None = None,
        include_top: bool = True,
        weights: str | os.PathLike | None = None,
        head_bias: float = 0.0,
        classifier_activation: str | Callable | None = None,
        preprocessing: Preprocessing | Mapping[str, Any] | None = None,
        name: str = "bit_resnet",
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        arguments = kept_arguments(locals())
        check_choice("depth", depth, BIT_UNITS)
        check_choice("version", version, (1, 2))
        check_positive_int("width_factor", width_factor)
        check_width(width)
        if weights is not None and classes is None and include_top:
            published = checkpoints.find_published(weights, depth=depth, width_factor=width_factor)
            classes = None if published is None else published.classes
        arguments["classes"] = 1000 if classes is None else classes
        check_positive_int("classes", arguments["classes"])
        policy = {"dtype": dtype}
        resnet = _make_resnet(arguments, policy)
        images = keras.Input(shape=input_shape, name="images")
        x = layers.InputPreprocessing(preprocessing, name="expected_images", **policy)(images)
        pool = keras.layers.GlobalAveragePooling2D("channels_last", name="pool", **policy)
        keep(self, resnet=resnet)
        super().__init__(
            images,
            add_head(pool(resnet(x)), arguments),
            arguments=arguments,
            weights=weights,
            preprocessing=preprocessing,
            name=name,
            **policy,
            **kwargs,
        )


def _make_resnet(arguments, policy):
    """Creates the layer with all units of the ResNet."""
    blocks = BIT_UNITS[arguments["depth"]]
    channels = arguments["width"] * arguments["width_factor"]
    if arguments["version"] == 1:
        return layers.ResNetStem(blocks, channels, name="resnet_stem", **policy)
    return layers.PreActivationResNet(
        blocks, channels, arguments["pool_padding"], name="resnet", **policy
    )
