"""Resampling position embeddings to another grid of patches."""

import math

import numpy as np


def resample(positions, old_grid, new_grid):
    """Resamples a position embedding, bilinearly with aligned corners.

    Args:
        positions: float array `(1, N, D)`; N is `rows * columns` of the old grid, or one more with a class token,
            whose row comes first and is copied.
        old_grid, new_grid: `(rows, columns)`.

    Returns:
        float32 array `(1, M, D)` for the new grid, with a class token's row where there was one.

    Reference: the original's `interpolate_posembed`, `scipy.ndimage.zoom(order=1)`: output k of n samples the
    coordinate `k * (n_old - 1) / (n_new - 1)`. SciPy rounds some last coordinates past the border and fills that row
    and column with zeros (28 to 48, say); here the coordinate is clamped.
    """
    class_tokens = positions.shape[1] - math.prod(old_grid)
    first, grid = positions[:, :class_tokens], positions[0, class_tokens:]
    grid = grid.reshape(*old_grid, -1).astype(np.float64)
    rows, columns = (_weights(old, new) for old, new in zip(old_grid, new_grid))
    grid = np.einsum("ro,oqd,cq->rcd", rows, grid, columns, optimize=True)
    grid = grid.reshape(1, math.prod(new_grid), -1).astype(np.float32)
    return np.concatenate([first.astype(np.float32), grid], axis=1)


def source_grid(tokens, target_grid):
    """The grid that `tokens` position rows of a file stand for: a square, as in every file of the original.

    A number that is no square can only be the target's own grid; None where it is not that either.
    """
    side = math.isqrt(tokens)
    if side * side == tokens:
        return (side, side)
    return tuple(target_grid) if math.prod(target_grid) == tokens else None


def _weights(old, new):
    """Matrix `(new, old)` of the linear interpolation along one axis."""
    coordinates = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
    low = np.clip(np.floor(coordinates).astype(int), 0, max(old - 2, 0))
    share = np.clip(coordinates - low, 0.0, 1.0)
    weights = np.zeros((new, old))
    weights[np.arange(new), low] += 1 - share
    weights[np.arange(new), np.minimum(low + 1, old - 1)] += share
    return weights
