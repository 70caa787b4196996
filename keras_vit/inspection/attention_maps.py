"""Computes attention maps of images."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.relevance import attention_relevance
from keras_vit.inspection.scores import attention_scores, check_inputs, iterate_scores
from keras_vit.layers.validation import check_choice
from keras_vit.models.any_model import find_vision_transformer
from keras_vit.models.features import tokens_read
from keras_vit.models.layer_numbers import layer_number
from keras_vit.plots import to_pictures


def attention_rollout(scores: np.ndarray, residual: bool = True) -> np.ndarray:
    """Computes the contribution of each input token to each output token by multiplying the
    attention of all layers.

    `R_l = A_l R_(l-1)`, starting with `R_0 = I`. `A_l` is the mean of the scores of layer l over
    heads, or `0.5 (mean + I)` if `residual` is True.

    Args:
        scores: `(L, ..., heads, N, N)`, from the first layer to the last; rows sum to 1.
        residual: whether to add the identity, as in Abnar and Zuidema's code. The ViT paper does
            not mention the identity.

    Returns:
        float64 `(..., N, N)`; rows sum to 1.

    Raises:
        ValueError: `scores` has another shape.

    Reference: ViT paper, appendix D.8; Abnar and Zuidema, "Quantifying Attention Flow in
        Transformers".
    """
    scores = np.asarray(scores)
    if scores.ndim < 4 or scores.shape[-1] != scores.shape[-2] or not len(scores):
        raise ValueError(f"`scores` must be (L, ..., heads, N, N). Received: shape={scores.shape}")
    rollout = np.eye(scores.shape[-1])
    for layer in scores:
        mixed = layer.astype("float64").mean(-3)
        rollout = (0.5 * (mixed + np.eye(mixed.shape[-1])) if residual else mixed) @ rollout
    return rollout


def attention_maps(
    model: keras.Model,
    images: np.ndarray,
    method: str = "rollout",
    residual: bool = True,
    layer: int = -1,
    targets: np.ndarray | Sequence[int] | None = None,
    upsample: bool = True,
) -> np.ndarray:
    """Computes how much a model attends to each location of its images.

    A map is the class token's row of the attention matrix if the output depends only on that token,
    and otherwise the mean of the patch tokens' rows. In a distilled model, it is the mean of the
    rows of both class tokens. Rollout and relevance end at the last layer that the output depends
    on.

    Args:
        model, images: as in `attention_scores`.
        method: "rollout" (`attention_rollout` through all layers), "mean" (mean over the heads of
            one layer), or "relevance" (`attention_relevance`, all layers weighted by the gradient
            of a class output).
        residual: as in `attention_rollout`; used by "rollout" only.
        layer: the layer, counted from 1, or -1 for the last; used by "mean" only.
        targets: class of each image, integers `(B,)`, or None for the predicted classes; used by
            "relevance" only.
        upsample: whether to resize the maps to the size of the images.

    Returns: Nonnegative float32 `(B, H, W)`, or `(B, rows, columns)` with one value per patch if
        `upsample` is False. For a batch of images of any size, all maps have the height of the
        tallest image and the width of the widest image, and are padded with zeros.

    Raises:
        ValueError: `method` or another argument is invalid, or the attention is not finite.
    """
    check_choice("method", method, ("rollout", "mean", "relevance"))
    vit, images = check_inputs(model, images)
    layout: Any = vit.preprocessing.layout
    if method == "rollout":  # one image at a time, because it reads the scores of all heads
        singles = (images[i : i + 1] for i in range(len(images)))
        rollouts = [ops.convert_to_numpy(_rollout(model, single, residual)) for single in singles]
        matrices = np.concatenate(rollouts)
    elif method == "mean":
        number = layer_number(vit, layer, first=1)
        matrices = attention_scores(model, images, number, reduce="mean")
    else:
        matrices = attention_relevance(model, images, targets).astype("float32")
    if layout.has_one_size:
        maps = ops.convert_to_numpy(token_row(model, matrices))
    else:
        images = ops.convert_to_numpy(images)
        maps = layout.mean_over_queries(matrices, images)
    if not np.isfinite(maps).all():
        raise ValueError(
            "The model's attention must be finite. Received: attention with NaN or infinity"
        )
    if not layout.has_one_size:
        return _padded_maps(layout.grids(maps, images), vit.patch_size if upsample else 1)
    return upsample_maps(maps, images.shape[1:3]) if upsample else maps


def rollout_map(model, images):
    """Computes the rollout map of each image, float32 `(B, rows, columns)`, in `keras.ops` and one
    layer at a time."""
    return token_row(model, _rollout(model, images))


def _rollout(model, images, residual=True):
    """Returns the rollout `(B, N, N)` up to the last layer that the output reads."""
    rollout = None
    for _, scores in iterate_scores(model, images, last=tokens_read(model)[1]):
        rollout = rollout_step(rollout, scores, residual)
    return rollout


def _padded_maps(grids, side):
    """Returns maps `(B, H, W)` padded with zeros; a value of a grid covers `side` x `side`
    pixels."""
    sizes = side * np.array([grid.shape for grid in grids])
    maps = np.zeros((len(grids), *sizes.max(0)), "float32")
    for image, grid, (height, width) in zip(maps, grids, sizes):
        image[:height, :width] = upsample_maps(grid[None], (height, width))[0]
    return maps


def rollout_step(rollout, scores, residual=True):
    """Returns the rollout `(B, N, N)` after a layer with scores `(B, heads, N, N)`. Initially,
    `rollout` is None."""
    mixed = ops.mean(scores, axis=1)
    if residual:
        mixed = 0.5 * (mixed + ops.eye(mixed.shape[-1], dtype="float32"))
    return mixed if rollout is None else ops.matmul(mixed, rollout)


def token_row(model, matrix, patch=None):
    """Returns a token's attention to each patch, `(B, rows, columns)`.

    `matrix` contains attention matrices `(B, N, N)`. With `patch`, `(row, column)`, the token is
    that patch token. Without `patch`, the result is the mean over the tokens that the output reads,
    such as the class token.
    """
    vit = find_vision_transformer(model)
    vit.check_grid()
    prefix = vit.num_prefix_tokens
    if patch is not None:
        rows = matrix[:, prefix + patch[0] * vit.grid[1] + patch[1]]
    else:
        rows = ops.mean(matrix[:, tokens_read(model)[0]], axis=1)
    return ops.reshape(rows[:, prefix:], (-1, *vit.grid))


def token_attention(
    model: keras.Model,
    images: Any,
    patch: tuple[int, int] | None = None,
    layer: int = -1,
    head: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes how much one token attends to each patch, in a rollout over layers and in one layer.

    Args:
        model, images: as in `attention_scores`.
        patch: `(row, column)` of a patch token, counted from 0. None for the mean over the tokens
            that the output reads, as in `attention_maps`.
        layer: the layer of the second result, counted from 1, or -1 for the last.
        head: the head in that layer, counted from 1, or None for the mean over heads.

    Returns: `(rollout, attention)`, each nonnegative float32 `(B, rows, columns)`:
        `attention_rollout` with residual connections, up to the last layer that the output depends
        on, and the scores of `layer`. Attention to prefix tokens is omitted, so a map sums to at
        most 1.

    Raises:
        ValueError: the patch, layer or head does not exist, or `attention_scores` rejects the
            arguments.
    """
    vit, images = check_inputs(model, images)
    layer = layer_number(vit, layer, first=1)
    if head is not None and head not in range(1, vit.num_heads + 1):
        raise ValueError(
            f"`head` must be 1 to {vit.num_heads}, or None for the mean. Received: head={head!r}"
        )
    if patch is not None and (np.ndim(patch) != 1 or tuple(patch) not in np.ndindex(*vit.grid)):
        raise ValueError(
            f"`patch` must be (row, column) below {vit.grid}, or None. Received: patch={patch!r}"
        )
    # Compute the rollout and the scores of the layer in one pass.
    rollout = attention = None
    for number, scores in iterate_scores(model, images):
        if number <= tokens_read(model)[1]:
            rollout = rollout_step(rollout, scores)
        if number == layer:
            attention = ops.mean(scores, axis=1) if head is None else scores[:, head - 1]
    rollout, attention = (
        ops.convert_to_numpy(token_row(model, matrix, patch)) for matrix in (rollout, attention)
    )
    return rollout, attention


def upsample_maps(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes maps `(B, rows, columns)` to float32 `(B, H, W)` with bilinear interpolation; `size`
    is `(H, W)`."""
    resized = ops.image.resize(
        np.asarray(maps, "float32")[..., None], size, "bilinear", data_format="channels_last"
    )
    return ops.convert_to_numpy(resized)[..., 0]


def overlay(images: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """Scales the brightness of images by attention maps, as in Figures 6 and 14 of the ViT paper.

    Args:
        images: `(B, H, W, C)` in [-1, 1]. The first three channels are RGB. If C is less than 3,
            the first channel is gray.
        maps: `(B, H, W)`, nonnegative; each is divided by its maximum.

    Returns:
        float32 `(B, H, W, 3)` in [0, 1].

    Raises:
        ValueError: `maps` does not have shape `(B, H, W)`.
    """
    images = np.asarray(images, "float32")
    maps = np.asarray(maps, "float32")
    if images.shape[:3] != maps.shape:
        raise ValueError(
            f"`maps` must have one map of the same size for each image. Received: {images.shape} "
            f"and {maps.shape}"
        )
    largest = maps.max((1, 2), keepdims=True)
    return to_pictures(images) * (maps / np.where(largest > 0, largest, 1))[..., None]
