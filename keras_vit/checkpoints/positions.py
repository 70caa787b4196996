"""Resampling position embeddings to another grid of patches."""

import math

import numpy as np


def resample(positions, old_grid, new_grid, scipy_border=False):
    """Resamples a position embedding, bilinearly with aligned corners.

    Args:
        positions: float array `(1, N, D)`; N is `rows * columns` of the old grid, or one more with a class token,
            whose row comes first and is copied.
        old_grid, new_grid: `(rows, columns)`.
        scipy_border: whether to fill the last row and column with zeros where the original's arithmetic does.

    Returns:
        float32 array `(1, M, D)` for the new grid, with a class token's row where there was one.

    Reference: the original's `interpolate_posembed`, `scipy.ndimage.zoom(order=1)`: output k of n samples the
    coordinate `k * (n_old - 1) / (n_new - 1)`. SciPy rounds some last coordinates past the border and fills that row
    and column with zeros (28 to 48, say); here the coordinate is clamped unless `scipy_border` asks for its zeros.
    """
    class_tokens = positions.shape[1] - math.prod(old_grid)
    first, grid = positions[:, :class_tokens], positions[0, class_tokens:]
    grid = grid.reshape(*old_grid, -1).astype(np.float64)
    rows, columns = (_weights(old, new, scipy_border) for old, new in zip(old_grid, new_grid))
    grid = np.einsum("ro,oqd,cq->rcd", rows, grid, columns, optimize=True)
    grid = grid.reshape(1, math.prod(new_grid), -1).astype(np.float32)
    return np.concatenate([first.astype(np.float32), grid], axis=1)


def source_grid(rows, class_token, target_grid, known_grid=None):
    """The grid that the rows of a file's position embedding stand for, and whether row 0 is the class token's.

    A known grid decides. Otherwise it is a square, as in every file of the original, with a row for the class token
    if the file has one; or the target's own grid; or a square without that row, as big_vision has it.

    Args:
        rows: number of positions in the file.
        class_token: whether the file holds a class token.
        target_grid: `(rows, columns)` of the model.
        known_grid: `(rows, columns)` as the file or the user says, or None.

    Returns:
        `((rows, columns), class_row)`, or None where nothing fits.
    """
    with_row = [1, 0] if class_token else [0]
    if known_grid is not None:
        candidates = [(tuple(known_grid), row) for row in with_row]
    else:
        side = [math.isqrt(rows - row) for row in with_row]
        candidates = [((n, n), row) for n, row in zip(side, with_row)]
        candidates[1:1] = [(tuple(target_grid), row) for row in with_row]
    for grid, row in candidates:
        if math.prod(grid) + row == rows:
            return grid, bool(row)
    return None


def _weights(old, new, scipy_border):
    """Matrix `(new, old)` of the linear interpolation along one axis."""
    coordinates = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
    low = np.clip(np.floor(coordinates).astype(int), 0, max(old - 2, 0))
    share = np.clip(coordinates - low, 0.0, 1.0)
    weights = np.zeros((new, old))
    weights[np.arange(new), low] += 1 - share
    weights[np.arange(new), np.minimum(low + 1, old - 1)] += share
    if scipy_border:
        weights[coordinates > old - 1] = 0.0
    return weights
