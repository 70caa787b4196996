"""How far attention looks: the receptive field of each head, in pixels."""

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.scores import as_images, iterate_scores
from keras_vit.layers.validation import check_positive_int


def attention_distance(
    model: keras.Model, images: np.ndarray, class_token: str = "out", batch_size: int = 8
) -> np.ndarray:
    """Computes the mean attention distance of every layer and head, over images and queries: Figures 7 (right) and 11.

    Args:
        model, images: as of `attention_scores`; the paper takes 128 images.
        class_token: see `mean_distance`.
        batch_size: images that are computed at a time; scores are never kept for more than one layer.

    Returns:
        float64 `(layers, heads)`, in pixels.

    Raises:
        ValueError: as `attention_scores`.
    """
    vit, images = as_images(model, images)
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
    """Computes the mean distance between a patch and what it attends to: the sum over keys of attention times distance.

    Args:
        scores: `(..., heads, N, N)`, attention after the softmax, from query to key.
        grid: `(rows, columns)` of the patches.
        patch_size: `(height, width)` of a patch, in pixels.
        num_prefix_tokens: tokens before those of the patches, 1 for a class token. They are no queries here.
        class_token: "out" to leave attention to prefix tokens out, so that the rest sums to 1 again; "in" to count it
            as attention of distance 0. The paper's appendix D.7 does not say.

    Returns:
        float32 `(..., heads)`, in pixels; a numpy array.

    Raises:
        ValueError: `class_token` is neither, or the scores do not fit the grid.
    """
    scores = ops.convert_to_tensor(scores, "float32")
    tokens = grid[0] * grid[1] + num_prefix_tokens
    if len(scores.shape) < 3 or tuple(scores.shape[-2:]) != (tokens, tokens):
        raise ValueError(f"Scores must be (..., heads, {tokens}, {tokens}). Received: shape={tuple(scores.shape)}")
    if class_token not in ("in", "out"):
        raise ValueError(f"`class_token` must be 'in' or 'out'. Received: class_token={class_token!r}")
    patches = scores[..., num_prefix_tokens:, num_prefix_tokens:]
    sums = ops.sum(patches * _grid_distances(grid, patch_size), axis=-1)  # (..., heads, queries)
    if class_token == "out" and num_prefix_tokens:
        # A query may give everything to the class token, and nothing is left.
        sums = sums / ops.maximum(ops.sum(patches, axis=-1), 1e-30)
    return ops.convert_to_numpy(ops.mean(sums, axis=-1))


def _grid_distances(grid, patch_size):
    """The distance between the centers of any two patches, in pixels: float32 `(P, P)`."""
    rows, columns = np.indices(grid).reshape(2, -1)
    y, x = rows * patch_size[0], columns * patch_size[1]
    return np.hypot(y[:, None] - y, x[:, None] - x).astype("float32")
