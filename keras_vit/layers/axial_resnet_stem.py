"""The ResNet whose 3x3 convolutions are axial attention."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.axial_attention import AxialAttention
from keras_vit.layers.resnet_stem import BottleneckUnit, ResNetStem


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialResNetStem(ResNetStem):
    """A `ResNetStem` with attention along columns and then rows in place of each 3x3 convolution.

    Its root is the same. Where a unit halves the sides, the mean of 2x2 positions does so after the attention.

    Args:
        blocks, width: as of `ResNetStem`.
        num_heads: of the attention; twice as many must divide `width`.

    Call arguments:
        images: `(B, H, W, C)`, float, of a static size.

    Returns:
        `(B, h, w, F)` in the compute dtype, 0 or more.

    Raises:
        ValueError: as `ResNetStem` and `AxialAttention`.

    Reference: paper appendix D.6; Scenic's `AxialResNet` (epsilon of GroupNorm 1e-4, of the weight standardization
    1e-10 on the variance).
    """

    norm_epsilon = 1e-4
    variance_epsilon = 1e-10

    def __init__(self, blocks: Sequence[int] = (), width: int = 64, num_heads: int = 8, **kwargs: Any) -> None:
        super().__init__(blocks, width, **kwargs)
        self.num_heads = num_heads

    def _unit(self, channels, strides, **kwargs):
        return AxialBottleneckUnit(channels, strides, self.num_heads, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_heads": self.num_heads}


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialBottleneckUnit(BottleneckUnit):
    """A `BottleneckUnit` with attention along columns and then rows in place of the 3x3 convolution.

    Args:
        channels, strides: as of `BottleneckUnit`; the mean of 2x2 positions takes the strides.
        num_heads: of the attention.
    """

    norm_epsilon = 1e-4
    variance_epsilon = 1e-10

    def __init__(self, channels: int, strides: int = 1, num_heads: int = 8, **kwargs: Any) -> None:
        super().__init__(channels, strides, **kwargs)
        self.num_heads = num_heads

    def _spatial_layers(self):
        policy = self.dtype_policy
        self.attention_height = AxialAttention(self.num_heads, "height", dtype=policy, name="attention_height")
        self.attention_width = AxialAttention(self.num_heads, "width", dtype=policy, name="attention_width")
        self.mean = keras.layers.AveragePooling2D(
            self.strides, padding="same", data_format="channels_last", dtype=policy, name="mean"
        )
        return self.attention_height, self.attention_width, self.mean

    def _counted_layers(self):
        return self.conv1, self.attention_height, self.attention_width, self.mean, self.conv3

    def _spatial(self, x):
        x = self.attention_width(self.attention_height(x))
        return ops.relu(x if self.strides == 1 else self.mean(x))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_heads": self.num_heads}
