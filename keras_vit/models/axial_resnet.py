"""The AxialResNet of the paper's appendix D.6 as a functional Keras model."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_vit import checkpoints, layers
from keras_vit.layers.resnet_stem import BIT_UNITS
from keras_vit.layers.validation import check_positive_int
from keras_vit.models.bit_resnet import check_depth
from keras_vit.models.image_model import ImageModel, policy_of
from keras_vit.preprocessing import Preprocessing


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialResNet(ImageModel):
    """An AxialResNet: images `(B, H, W, C)` in [-1, 1] to logits `(B, classes)`.

    A ResNet of version 1 (see `BiTResNet`) in which attention along columns and then rows stands for each 3x3
    convolution (`layers.AxialResNetStem`); the paper's is of depth 50.

    Args:
        depth, width_factor, width: as of `BiTResNet`.
        num_heads: of the attention; twice as many must divide the channels of the root.
        input_shape: `(height, width, channels)` in pixels; any size and any number of channels.
        classes: number of outputs of the head.
        include_top: whether the model has its head.
        weights: None, or a path of weights that `checkpoints.save` wrote of such a model; relative positions are
            resampled to another size of images.
        head_bias, classifier_activation, preprocessing: as of `BiTResNet`.
        name, dtype: as of `BiTResNet`.

    Returns, attributes: as of `BiTResNet`.

    Raises:
        ValueError: an argument is out of range, or the checkpoint does not match.

    Reference: paper appendix D.6; Scenic's `AxialResNet`.
    """

    def __init__(
        self,
        *,
        depth: int = 50,
        width_factor: int = 1,
        width: int = 64,
        num_heads: int = 8,
        input_shape: tuple[int, int, int] = (224, 224, 3),
        classes: int = 1000,
        include_top: bool = True,
        weights: str | os.PathLike | None = None,
        head_bias: float = 0.0,
        classifier_activation: str | Callable | None = None,
        preprocessing: Preprocessing | Mapping[str, Any] | None = None,
        name: str = "axial_resnet",
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        check_depth(depth)
        check_positive_int("width_factor", width_factor)
        check_positive_int("classes", classes)
        arguments = {
            "depth": depth,
            "width_factor": width_factor,
            "width": width,
            "num_heads": num_heads,
            "input_shape": tuple(input_shape),
            "classes": classes,
            "include_top": include_top,
            "head_bias": head_bias,
            "classifier_activation": classifier_activation,
        }
        policy = {"dtype": policy_of(dtype)}
        resnet = layers.AxialResNetStem(BIT_UNITS[depth], width * width_factor, num_heads, name="resnet_stem", **policy)
        self._build_pooled(resnet, preprocessing, arguments, name, policy, kwargs)
        if weights is not None:
            checkpoints.load(self, weights)
