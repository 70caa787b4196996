"""Cuts images into patches and projects them to tokens."""

from typing import Any

import keras
from keras import KerasTensor, ops

from keras_vit.layers.base import BaseLayer, serializable
from keras_vit.layers.token_dense import TokenDense
from keras_vit.layers.validation import check_positive_int, check_rank, nearest_multiples


def cut_patches(images, patch_size):
    """Cuts images into patches in raster order: `(B, H, W, C)` to `(B, H/P * W/P, P*P*C)`."""
    _, height, width, channels = ops.shape(images)
    rows = height // patch_size
    columns = width // patch_size
    x = ops.reshape(images, (-1, rows, patch_size, columns, patch_size, channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (-1, rows * columns, patch_size * patch_size * channels))


@serializable
class Patches(BaseLayer):
    """Cuts images into square patches and flattens each: `(B, H, W, C)` to `(B, H/P * W/P, P*P*C)`.

    Patches are in raster order. The values of a patch are ordered by row, column and channel, like
    a convolution kernel `(P, P, C, D)` reshaped to `(P*P*C, D)`.

    Args:
        patch_size: P, the side of a patch in pixels, 1 or more.

    Raises:
        ValueError: `patch_size` is not a positive integer or does not divide the height and width,
            or the images do not have rank 4.

    Reference: paper section 3.1; matches the patches of the reference's strided `embedding`
        convolution.
    """

    def __init__(self, patch_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive_int("patch_size", patch_size)
        self._keep_arguments(locals())

    def build(self, input_shape: tuple) -> None:
        check_rank("Patches", input_shape, "B, H, W, C")
        self._check_sides(input_shape)

    def _check_sides(self, shape):
        """Raises a `ValueError` unless the sides of images, if known, are whole patches."""
        for name, side in zip(("height", "width"), shape[1:3]):
            if side is not None and (side % self.patch_size or side == 0):
                raise ValueError(
                    f"`patch_size` must divide the {name} of the images; the nearest valid {name}s "
                    f"are {nearest_multiples(side, self.patch_size)}. Received: {name}={side}, "
                    f"patch_size={self.patch_size}"
                )

    def call(self, images: KerasTensor) -> KerasTensor:
        self._check_sides(images.shape)  # a layer built for any size meets the sides here
        return cut_patches(images, self.patch_size)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch, height, width, channels = input_shape
        tokens = None
        if height is not None and width is not None:
            tokens = (height // self.patch_size) * (width // self.patch_size)
        values = None if channels is None else self.patch_size**2 * channels
        return (batch, tokens, values)


@serializable
class PatchEncoder(TokenDense):
    """Projects flattened patches linearly to tokens: `(B, N, P*P*C)` to `(B, N, hidden_size)`.

    After `Patches`, this layer computes the reference's strided convolution `embedding`. Its kernel
    `(P*P*C, D)` is the reshaped convolution kernel `(P, P, C, D)`.

    Args:
        hidden_size: D, the size of a token, 1 or more.
        use_bias: whether to add a bias.

    Raises:
        ValueError: `hidden_size` is not a positive integer, or the patches do not have rank 3.

    Reference: paper equation 1, the matrix E; initialized as in the reference (LeCun normal, zero
        bias).
    """

    def __init__(self, hidden_size: int, use_bias: bool = True, **kwargs: Any) -> None:
        check_positive_int("hidden_size", hidden_size)
        super().__init__(
            hidden_size, use_bias=use_bias, kernel_initializer="lecun_normal", **kwargs
        )
        self.hidden_size = hidden_size

    def build(self, input_shape: tuple) -> None:
        check_rank("PatchEncoder", input_shape, "B, N, P*P*C")
        super().build(input_shape)

    def multiply_accumulates(self, input_shape: tuple) -> int:
        """Returns the multiply-accumulates of one example for the shape `(B, N, P*P*C)`."""
        return input_shape[1] * input_shape[2] * self.hidden_size

    def get_config(self) -> dict[str, Any]:
        config = keras.layers.Layer.get_config(self)
        return {**config, "hidden_size": self.hidden_size, "use_bias": self.use_bias}
