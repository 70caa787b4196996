"""A layer that records a model's preprocessing and the activation of its logits."""

import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import keras
from keras import KerasTensor

from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.preprocessing import Preprocessing, check_channels, concrete_values, range_error


@serializable
class InputPreprocessing(BaseLayer):
    """Returns images `(B, H, W, C)` unchanged.

    The layer records their preprocessing and the activation of the logits.

    Every architecture in keras_vit starts with this layer, because a layer's config survives
    saving, `from_config` and `clone_model`. `keras_vit.preprocessing_of` reads the config. An eager
    call warns once if its first image appears to contain raw pixel values or to have been
    preprocessed twice.

    Args:
        preprocessing: a `keras_vit.Preprocessing`, a dict of its fields, or None for the
            preprocessing of the JAX reference. If all channels share one mean and one std, images
            may have any number of channels. The attribute `preprocessing` can be set later.
        logits_activation: activation that turns logits into probabilities, "softmax" or "sigmoid".
            Training a classifier sets it to match the loss.

    Raises:
        ValueError: the dict has unknown keys, a value is out of range, or the number of channels
            does not match.
    """

    def __init__(
        self,
        preprocessing: Preprocessing | Mapping[str, Any] | None = None,
        logits_activation: str = "softmax",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._channels: Any = None  # known after `build`
        self._has_warned = False
        self.logits_activation = logits_activation
        self.preprocessing = Preprocessing() if preprocessing is None else preprocessing

    @property
    def preprocessing(self) -> Preprocessing:
        return self._preprocessing

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | Mapping[str, Any]) -> None:
        value = value if isinstance(value, Preprocessing) else Preprocessing.from_config(value)
        self._preprocessing = (
            value if self._channels is None else value.for_channels(self._channels)
        )

    def build(self, input_shape: tuple) -> None:
        self._channels = input_shape[-1]
        self._preprocessing = self._preprocessing.for_channels(self._channels)

    def call(self, images: KerasTensor) -> KerasTensor:
        check_channels(images.shape, self._channels)
        self._warn_about_range(images)
        return images

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        self.refuse_quantization()

    def refuse_quantization(self) -> NoReturn:
        """Raises a `ValueError`, because the file of a quantized model could not be loaded."""
        raise ValueError(
            "Models of keras_vit do not support `quantize`. For 8-bit inference, use `export.onnx` "
            f'or `export.litert` with quantization="int8". Received: layer={self.name!r}'
        )

    def _warn_about_range(self, images):
        """Warns once if the values of the first image do not fit the preprocessing."""
        if self._has_warned:
            return
        values = concrete_values(images[:1])
        if values is None:
            return
        values = self.preprocessing.layout.pixels(values)
        message = range_error(values, self.preprocessing) if values.size else None
        if message:
            self._has_warned = True
            warnings.warn(message, stacklevel=2)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "preprocessing": self.preprocessing.to_config(),
            "logits_activation": self.logits_activation,
        }


# Name of this layer in .keras files of earlier versions.
keras.saving.get_custom_objects()["keras_vit>ExpectedImages"] = InputPreprocessing
