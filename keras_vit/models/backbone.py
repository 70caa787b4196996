"""Models that compute feature maps at several strides, for detection and segmentation heads."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

from keras_vit.layers.base import serializable
from keras_vit.models.any_model import find_vision_transformer, rebuild
from keras_vit.models.features import FeatureModel
from keras_vit.models.image_model import frozen_parts


@serializable
class Backbone(keras.Model):
    """A model that computes a feature pyramid from several layers of a Vision Transformer.

    The patch tokens of a layer form a feature map whose stride is the patch stride. Transposed
    convolutions of stride 2, with LayerNorm and GELU in between, upsample a map to a smaller
    stride. Max-pooling downsamples a map to a larger stride.

    Args:
        model: a `keras.Model` that is or contains a `VisionTransformer`. The backbone shares the
            layers of this model. Training the backbone trains these layers unless they are frozen
            (`keras_vit.freeze`).
        layers: layer number for each map, counted from 1; see `features`.
        strides: stride of each map in image pixels. Must be the patch stride multiplied or divided
            by a power of two.
        norm: whether to apply the Vision Transformer's final LayerNorm to the output of each layer.

    Returns: When called on images `(B, H, W, C)`, a list of maps `(B, H / stride, W / stride, D)`;
        sides are rounded down.

    Raises:
        ValueError: the model has no Vision Transformer or takes images of any size, a layer does
            not exist, a stride exceeds the image or is not the patch stride multiplied or divided
            by a power of two, or `layers` and `strides` are empty or differ in length.

    Reference: the necks of BEiT (Bao et al., 2021), with LayerNorm instead of BatchNorm.
    """

    def __init__(
        self,
        model: keras.Model,
        layers: Sequence[int] = (3, 6, 9, 12),
        strides: Sequence[int] = (4, 8, 16, 32),
        norm: bool = True,
        **kwargs: Any,
    ) -> None:
        # The policy of the necks. This model itself casts nothing.
        policy = keras.dtype_policies.get(kwargs.pop("dtype", None))
        super().__init__(dtype="float32", **kwargs)
        if np.shape(layers) != np.shape(strides) or np.ndim(layers) != 1 or not len(layers):
            raise ValueError(
                "`layers` and `strides` must be lists of the same length, with at least one "
                f"element. Received: {layers=}, {strides=}"
            )
        vit = find_vision_transformer(model)
        vit.check_grid()
        side = min(vit.grid) * vit.patch_stride
        if max(strides) > side:
            raise ValueError(
                f"`strides` must not exceed the image's side, {side}. Received: strides={strides}"
            )
        self.layer_numbers = tuple(layers)
        self.strides = tuple(strides)
        self.norm = norm
        self.neck_policy = policy
        self.feature_model = FeatureModel(
            model, list(layers), tokens="patch", grid=True, norm=norm, name="features"
        )
        self.necks = [
            _neck(_power_of_two(vit.patch_stride, stride), vit.hidden_size, f"neck_{i}", policy)
            for i, stride in enumerate(strides)
        ]
        self.build((None, *vit.image_shape))

    def build(self, input_shape: tuple) -> None:
        vit = self.feature_model.vit
        for neck in self.necks:
            neck.build((None, *vit.grid, vit.hidden_size))

    def call(self, images: KerasTensor, training: bool = False) -> list[KerasTensor]:
        maps = self.feature_model(images, training=training)
        return [
            neck(ops.cast(x, "float32"), training=training) for neck, x in zip(self.necks, maps)
        ]

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model": keras.saving.serialize_keras_object(self.feature_model.model),
            "layers": self.layer_numbers,
            "strides": self.strides,
            "norm": self.norm,
            "dtype": keras.dtype_policies.serialize(self.neck_policy),
            "frozen": frozen_parts(self.necks),
        }

    from_config = classmethod(rebuild)


def backbone(
    model: keras.Model,
    layers: Sequence[int] = (3, 6, 9, 12),
    strides: Sequence[int] = (4, 8, 16, 32),
    norm: bool = True,
) -> Backbone:
    """Returns a `Backbone` that shares the layers of a model; see `Backbone` for arguments and
    errors."""
    return Backbone(model, layers, strides, norm)


def _power_of_two(side, stride):
    """Returns how many times to halve (positive) or double (negative) the patch stride."""
    power = math.log2(side / stride) if stride > 0 else math.nan
    if not power.is_integer():
        raise ValueError(
            f"Each of `strides` must be {side} multiplied or divided by a power of two. Received: "
            f"{stride=}"
        )
    return int(power)


def _neck(power, hidden_size, name, policy):
    """Creates the layers that resize a map; see `_power_of_two` for `power`."""
    options = {"data_format": "channels_last", "dtype": policy}
    steps = [] if power else [keras.layers.Identity(dtype=policy)]
    if power < 0:
        steps.append(keras.layers.MaxPooling2D(2**-power, **options))
    for index in range(power):
        if index:
            norm = keras.layers.LayerNormalization(epsilon=1e-6, dtype=policy, name=f"norm_{index}")
            steps += [norm, keras.layers.Activation("gelu", dtype=policy)]
        steps.append(
            keras.layers.Conv2DTranspose(hidden_size, 2, strides=2, name=f"conv_{index}", **options)
        )
    return keras.Sequential(steps, name=name)
