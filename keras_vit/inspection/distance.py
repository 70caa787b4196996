"""Computes the mean attention distance of each head, in pixels."""

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.scores import check_inputs, iterate_scores
from keras_vit.layers.validation import check_choice, check_positive_int


def attention_distance(
    model: keras.Model, images: np.ndarray, class_token: str = "out", batch_size: int = 8
) -> np.ndarray:
    """Computes the attention distance of each head, averaged over images and queries (Figures 7 and
    11).

    Args:
        model, images: as in `attention_scores`; the ViT paper uses 128 images.
        class_token: see `mean_distance`.
        batch_size: number of images per batch; the scores of one layer for one batch must fit in
            memory.

    Returns:
        float64 `(layers, heads)`, in pixels.

    Raises:
        ValueError: `batch_size` is not a positive integer, `class_token` is unknown, the patches
            form no maps of one size, or `attention_scores` rejects the model or the images.
    """
    vit, images = check_inputs(model, images)
    vit.check_grid()
    check_positive_int("batch_size", batch_size)
    patch_size = (vit.patch_stride, vit.patch_stride)
    totals = np.zeros((vit.num_layers, vit.num_heads))
    for start in range(0, len(images), batch_size):
        for number, scores in iterate_scores(model, images[start : start + batch_size]):
            means = mean_distance(scores, vit.grid, patch_size, vit.num_prefix_tokens, class_token)
            totals[number - 1] += means.astype("float64").sum(0)
    return totals / len(images)


def mean_distance(
    scores: np.ndarray,
    grid: tuple[int, int],
    patch_size: tuple[int, int],
    num_prefix_tokens: int = 0,
    class_token: str = "out",
) -> np.ndarray:
    """Computes the distance to the attended patches, weighted by attention and averaged over query
    patches.

    Args:
        scores: `(..., heads, N, N)`, attention after the softmax, with one row per query and one
            column per key.
        grid: `(rows, columns)` of patches.
        patch_size: `(height, width)` of a patch, in pixels.
        num_prefix_tokens: number of tokens before the patches, such as 1 for a class token; they
            are never queries.
        class_token: "out" ignores attention to prefix tokens and renormalizes the rest; "in" gives
            prefix tokens a distance of 0. Appendix D.7 of the ViT paper does not specify the
            choice.

    Returns:
        A numpy array, float32 `(..., heads)`, in pixels.

    Raises:
        ValueError: `class_token` is unknown, or the scores do not fit the grid.
    """
    scores = ops.convert_to_tensor(scores, "float32")
    tokens = grid[0] * grid[1] + num_prefix_tokens
    if len(scores.shape) < 3 or tuple(scores.shape[-2:]) != (tokens, tokens):
        raise ValueError(
            f"`scores` must be (..., heads, {tokens}, {tokens}). Received: "
            f"shape={tuple(scores.shape)}"
        )
    check_choice("class_token", class_token, ("in", "out"))
    patches = scores[..., num_prefix_tokens:, num_prefix_tokens:]
    sums = ops.sum(patches * _grid_distances(grid, patch_size), axis=-1)  # (..., heads, queries)
    if class_token == "out" and num_prefix_tokens:
        # Avoid division by zero for a query that attends only to prefix tokens.
        sums = sums / ops.maximum(ops.sum(patches, axis=-1), 1e-30)
    return ops.convert_to_numpy(ops.mean(sums, axis=-1))


def _grid_distances(grid, patch_size):
    """Returns the distances in pixels between the centers of all pairs of patches, float32
    `(P, P)`."""
    centers = np.argwhere(np.ones(grid)) * patch_size
    return np.linalg.norm(centers[:, None] - centers, axis=-1).astype("float32")
