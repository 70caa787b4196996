"""Resamples position embeddings to another grid of patches."""

import functools
import math
from collections.abc import Callable

import numpy as np


def resample(positions, old_grid, new_grid, rule="zoom"):
    """Resamples the grid of a position embedding by one of `RULES`.

    Leading class token rows do not change.
    """
    if tuple(old_grid) == tuple(new_grid):
        return positions
    class_tokens = positions.shape[1] - math.prod(old_grid)
    class_rows = positions[:, :class_tokens]
    grid = positions[0, class_tokens:].reshape(*old_grid, -1).astype(np.float64)
    rows, columns = (RULES[rule](old, new) for old, new in zip(old_grid, new_grid))
    grid = np.einsum("ro,oqd,cq->rcd", rows, grid, columns, optimize=True)
    grid = grid.reshape(1, math.prod(new_grid), -1).astype(np.float32)
    return np.concatenate([class_rows.astype(np.float32), grid], axis=1)


def resample_axis(positions, new):
    """Resamples positions along one axis, linearly with aligned corners.

    Maps `(1, old, D)` to float32 `(1, new, D)`.
    """
    matrix = _zoom_matrix(positions.shape[1], new)
    return np.einsum("no,bod->bnd", matrix, positions.astype(np.float64)).astype(np.float32)


def source_grid(num_positions, class_tokens, target_grid, known_grid=None, class_row=False):
    """Returns `((rows, columns), number of class token rows)` of a file's positions.

    Returns None if no grid fits.
    """
    # If the grid is unknown, first try a square grid plus class token rows, as in `vit_jax`. Then
    # try the target grid, and finally a square grid without class token rows, as in big_vision.
    # `class_row` excludes layouts without class token rows.
    row_counts = [class_tokens]
    if class_tokens and not class_row:
        row_counts.append(0)
    grid = target_grid if known_grid is None else known_grid
    candidates = [(tuple(grid), rows) for rows in row_counts]
    if known_grid is None:
        squares = [((math.isqrt(max(num_positions - rows, 0)),) * 2, rows) for rows in row_counts]
        candidates = [squares[0], *candidates, *squares[1:]]
    for grid, rows in candidates:
        if 0 < math.prod(grid) == num_positions - rows:
            return grid, rows
    return None


def _zoom_matrix(old, new):
    """Returns the matrix of linear interpolation with aligned corners.

    `interpolate_posembed` of `vit_jax` calls `scipy.ndimage.zoom(order=1)`, which computes the same
    interpolation. For some lengths, such as 28 to 48, a rounding error moves SciPy's last
    coordinate past the end of the input, and SciPy returns zeros there. This function clamps
    coordinates to the input instead.
    """
    coordinates = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
    low = np.clip(np.floor(coordinates).astype(int), 0, max(old - 2, 0))
    fraction = np.clip(coordinates - low, 0.0, 1.0)
    matrix = np.zeros((new, old))
    matrix[np.arange(new), low] += 1 - fraction
    matrix[np.arange(new), np.minimum(low + 1, old - 1)] += fraction
    return matrix


def _cubic(x, a):
    """Computes Keys' cubic convolution kernel with the parameter `a`."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x**2 + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _linear(x):
    """Computes the kernel of linear interpolation."""
    return np.maximum(1 - np.abs(x), 0.0)


def _torch_bicubic_matrix(old, new, offset=0.0):
    """Returns the matrix of PyTorch's bicubic interpolation without antialiasing.

    The scale is `(new + offset) / old`.
    """
    source = (np.arange(new) + 0.5) * old / (new + offset) - 0.5
    matrix = np.zeros((new, old))
    for tap in range(-1, 3):
        column = np.floor(source) + tap
        weights = _cubic(source - column, -0.75)
        np.add.at(matrix, (np.arange(new), np.clip(column, 0, old - 1).astype(int)), weights)
    return matrix


def _torch_bilinear_matrix(old, new):
    """Returns the matrix of PyTorch's bilinear interpolation without aligned corners."""
    source = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return _linear(source[:, None] - np.arange(old))


def _antialias_matrix(old, new, kernel):
    """Returns the matrix of antialiased interpolation, as in Pillow and `jax.image.resize`.

    For downscaling, the kernel is stretched by `old / new`. The weights of each row sum to 1.
    """
    centers = (np.arange(new) + 0.5) * old / new
    weights = kernel((np.arange(old) + 0.5 - centers[:, None]) / max(old / new, 1))
    return weights / weights.sum(axis=1, keepdims=True)


# Resampling rules of the libraries that published the weights. Each function takes the old and new
# length of an axis and returns a matrix `(new, old)`.
RULES: dict[str, Callable[..., np.ndarray]] = {
    # `vit_jax`, and most big_vision models.
    "zoom": _zoom_matrix,
    # DPT in transformers.
    "bilinear": _torch_bilinear_matrix,
    # Most Hugging Face models, DeiT, I-JEPA and MAE.
    "bicubic": _torch_bicubic_matrix,
    # DINO, and DINOv2 without registers.
    "bicubic_offset": functools.partial(_torch_bicubic_matrix, offset=0.1),
    # Most timm models, and DINOv2 with registers.
    "bicubic_antialias": functools.partial(
        _antialias_matrix, kernel=functools.partial(_cubic, a=-0.5)
    ),
    # Other big_vision models, such as FlexiViT, which use `jax.image.resize`.
    "bilinear_antialias": functools.partial(_antialias_matrix, kernel=_linear),
}
