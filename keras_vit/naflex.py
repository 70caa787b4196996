"""SigLIP 2's NaFlex: represents images of any size and aspect ratio as patch sequences of equal
length.

A batch is a float32 array `(B, S, P*P + 2, C)` with S patches of P x P pixels per image. A patch
consists of its pixels, row by row, and two numbers: the patch's row and column in the image's patch
grid, counted from 1 and repeated for all channels. Padding patches are zeros.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_vit.preprocessing import LAYOUTS, Layout

__all__ = ["batch_shape", "pack", "preprocess"]

_SCALES = 1e-6, 100.0  # bounds of the binary search for the largest scale that fits
_HALVINGS = 24  # the resulting scale is accurate to 1e-5


def batch_shape(max_patches: int, patch_size: int, channels: int = 3) -> tuple[int, int, int]:
    """Returns the shape of one image in a batch, `(S, P*P + 2, C)`."""
    return max_patches, patch_size**2 + 2, channels


def patch_size_of(shape: Sequence[int]) -> int:
    """Returns the patch size P of a shape that `batch_shape` returned."""
    return math.isqrt(shape[1] - 2)


def target_grid(
    height: Any, width: Any, patch_size: int, max_patches: int, xp: Any = np
) -> tuple[Any, Any]:
    """Returns the patch grid `(rows, columns)` to which an image is resized.

    Searches for the largest scale at which the image, with both sides rounded up to whole patches,
    has at most `max_patches` patches. An image with an aspect ratio above `max_patches` becomes a
    strip of `max_patches` patches.

    Args:
        height, width: size of the image in pixels; tensors must be float64.
        patch_size: side of a patch in pixels, P.
        max_patches: largest number of patches, S.
        xp: a module with numpy's functions, such as `tf.experimental.numpy`.

    Reference: `get_image_size_for_max_num_patches` in Hugging Face transformers.
    """

    def patches(scale, side):
        return xp.maximum(xp.ceil(scale * side / patch_size), 1.0)

    low, high = _SCALES
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = patches(middle, height) * patches(middle, width) <= max_patches
        low = xp.where(fits, middle, low)
        high = xp.where(fits, high, middle)
    return patches(low, height), patches(low, width)


def linear_weights(places: Any, new: Any, old: int, xp: Any = np) -> Any:
    """Returns the weights `(..., old)` that resize an axis from `old` to `new` pixels, bilinearly
    with antialiasing.

    `places` are the indices of output pixels, 0 to `new` - 1. `new` is a number or an array with
    the shape of `places`.
    """
    centers = (places + 0.5) * old / new
    widths = xp.maximum(old / new, 1.0 + 0.0 * centers)  # broadcast to the shape of `places`
    weights = xp.maximum(
        1 - xp.abs(xp.arange(0.5, old) - centers[..., None]) / widths[..., None], 0.0
    )
    return weights / xp.sum(weights, axis=-1, keepdims=True)


def pack(
    patches: np.ndarray, shapes: np.ndarray, mask: np.ndarray | None = None, channels: int = 3
) -> np.ndarray:
    """Packs the outputs of transformers' `Siglip2ImageProcessor` into a batch.

    Args:
        patches: `pixel_values`, float `(B, S, P*P*C)`.
        shapes: `spatial_shapes`, the `(rows, columns)` of each image, integers `(B, 2)`.
        mask: `pixel_attention_mask`, `(B, S)`: 1 for the first `rows * columns` patches of each
            image, 0 for padding. None computes the mask from `shapes`.
        channels: number of channels, C.

    Returns:
        A float32 array `(B, S, P*P + 2, C)`.

    Raises:
        ValueError: an array has the wrong shape, an image does not have 1 to S patches, or the mask
            does not match `shapes`.
    """
    patches = np.asarray(patches, "float32")
    shapes = np.asarray(shapes)
    _check_shapes(patches, shapes, channels)
    batch, budget, _ = patches.shape
    number = np.arange(budget)
    real = number < shapes.prod(1)[:, None]
    if mask is not None and not np.array_equal(np.asarray(mask), real):
        raise ValueError(
            "`mask` must be 1 for the first rows * columns patches of each image and 0 for "
            f"padding. Received: {np.asarray(mask).sum(-1).tolist()} patches for "
            f"shapes={shapes.tolist()}"
        )
    columns = shapes[:, 1:]
    places = np.stack([number // columns + 1, number % columns + 1], axis=-1)  # (B, S, 2)
    places = np.repeat(places[..., None], channels, axis=-1)
    packed = np.concatenate([patches.reshape(batch, budget, -1, channels), places], axis=2)
    return (packed * real[:, :, None, None]).astype("float32")


def _check_shapes(patches, shapes, channels):
    """Raises a `ValueError` unless `patches` and `shapes` are valid arguments of `pack`."""
    if (
        patches.ndim != 3
        or shapes.shape != (len(patches), 2)
        or math.isqrt(patches.shape[2] // channels) ** 2 * channels != patches.shape[2]
    ):
        raise ValueError(
            "`patches` must be (B, S, P*P*C) and `shapes` (B, 2). Received: patches of shape "
            f"{patches.shape}, shapes of shape {shapes.shape}, channels={channels}"
        )
    budget = patches.shape[1]
    if (shapes < 1).any() or (shapes.prod(1) > budget).any():
        raise ValueError(
            f"`shapes` must have 1 to {budget} patches per image. Received: "
            f"shapes={shapes.tolist()}"
        )


def unpack(batch: np.ndarray) -> np.ndarray:
    """Unpacks a batch to images `(B, H, W, C)`, padded with -1 at the bottom and on the right."""
    side = patch_size_of(batch.shape[1:])
    channels = batch.shape[-1]
    places = batch[:, :, -2:, 0].astype(int)  # 0 for padding
    rows, columns = np.maximum(places.max((0, 1)), 1)
    images = np.full((len(batch), rows, columns, side, side, channels), -1.0, batch.dtype)
    number, patch = np.nonzero(places[..., 0])
    row, column = places[number, patch].T - 1
    images[number, row, column] = batch[number, patch, :-2].reshape(-1, side, side, channels)
    return images.transpose(0, 1, 3, 2, 4, 5).reshape(
        len(batch), rows * side, columns * side, channels
    )


def preprocess(
    images: Sequence[np.ndarray],
    mean: Sequence[float],
    std: Sequence[float],
    patch_size: int,
    max_patches: int,
) -> np.ndarray:
    """Resizes and normalizes images, and packs them into a batch.

    Each image is resized to fill its `target_grid`, with antialiased bilinear interpolation, and
    then normalized to `(image - mean) / std`.

    Args:
        images: non-empty images `(H, W, C)` of any sizes.
        mean, std: one number per channel, in units of the images' values.
        patch_size: side of a patch in pixels, P.
        max_patches: number of patches per image in the batch, S.

    Returns:
        A float32 array `(B, S, P*P + 2, C)`.

    Raises:
        ValueError: `patch_size` or `max_patches` is not a positive integer, there are no images, or
            an image has the wrong shape.
    """
    for name, value in {"patch_size": patch_size, "max_patches": max_patches}.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")
    channels = len(mean)
    sizes = [np.shape(image) for image in images]
    if not sizes or any(len(size) != 3 or size[2] != channels or 0 in size for size in sizes):
        raise ValueError(
            f"`images` must be a list of one or more images (H, W, {channels}). "
            f"Received: images of shapes {sizes}"
        )
    patches = []
    shapes = []
    for image in images:
        image, grid = _resized(np.asarray(image, "float32"), patch_size, max_patches)
        # Normalize the image and cut it into patches.
        image = (image - np.asarray(mean, "float32")) / np.asarray(std, "float32")
        cut = image.reshape(grid[0], patch_size, grid[1], patch_size, channels)
        cut = cut.transpose(0, 2, 1, 3, 4).reshape(grid[0] * grid[1], -1)
        patches.append(np.pad(cut, ((0, max_patches - len(cut)), (0, 0))))
        shapes.append(grid)
    return pack(np.stack(patches), np.array(shapes), channels=channels)


def _resized(image, patch_size, max_patches):
    """Resizes each axis of an image to whole patches; returns the image and its patch grid."""
    grid = [int(count) for count in target_grid(*image.shape[:2], patch_size, max_patches)]
    for axis, count in enumerate(grid):
        new = count * patch_size
        old = image.shape[axis]
        weights = linear_weights(np.arange(new), new, old).astype("float32")
        image = np.moveaxis(np.tensordot(weights, image, (1, axis)), 0, axis)
    return image, grid


class NaFlexLayout(Layout):
    """Batches `(B, S, P*P + 2, C)` of images of any size."""

    has_one_size = False

    def prepare(self, images: Any, preprocessing: Any, shape: tuple) -> Any:
        batch = preprocess(
            images, preprocessing.mean, preprocessing.std, patch_size_of(shape), shape[0]
        )
        return ops.convert_to_tensor(batch)

    def pixels(self, batch: Any) -> Any:
        return batch[:, :, :-2]

    def pictures(self, batch: np.ndarray) -> np.ndarray:
        return unpack(batch)

    def mean_over_queries(self, matrix: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Averages attention over all queries except padding: `(B, S, S)` to `(B, S)`."""
        real = np.float32(batch[:, :, -2, 0] > 0)
        return np.einsum("bqk,bq->bk", matrix, real / real.sum(1, keepdims=True))

    def grids(self, values: np.ndarray, batch: np.ndarray) -> list[np.ndarray]:
        """Arranges the values of patches, `(B, S)`, as a grid `(rows, columns)` for each image."""
        places = np.rint(batch[:, :, -2:, 0]).astype(int)  # 0 for padding
        grids = []
        for patches, place in zip(values, places):
            real = place[:, 0] > 0
            grid = np.zeros(place.max(0), "float32")
            grid[tuple(place[real].T - 1)] = patches[real]
            grids.append(grid)
        return grids


LAYOUTS["naflex"] = NaFlexLayout()
