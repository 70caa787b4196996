"""Resamples position embeddings to another grid of patches."""

import math

import numpy as np


def resample(positions, old_grid, new_grid, rule="zoom"):
    """Resamples the grid of a position embedding by one of `RULES`; leading class token rows do not
    change."""
    if tuple(old_grid) == tuple(new_grid):
        return positions
    class_tokens = positions.shape[1] - math.prod(old_grid)
    first = positions[:, :class_tokens]
    grid = positions[0, class_tokens:]
    grid = grid.reshape(*old_grid, -1).astype(np.float64)
    rows, columns = (RULES[rule](old, new) for old, new in zip(old_grid, new_grid))
    grid = np.einsum("ro,oqd,cq->rcd", rows, grid, columns, optimize=True)
    grid = grid.reshape(1, math.prod(new_grid), -1).astype(np.float32)
    return np.concatenate([first.astype(np.float32), grid], axis=1)


def resample_axis(positions, new):
    """Resamples positions `(1, old, D)` along one axis, linearly with aligned corners, to float32
    `(1, new, D)`."""
    matrix = _zoom_matrix(positions.shape[1], new)
    return np.einsum("no,bod->bnd", matrix, positions.astype(np.float64)).astype(np.float32)


def source_grid(num_positions, class_tokens, target_grid, known_grid=None, class_row=False):
    """Returns `((rows, columns), number of class token rows)` of a file's positions, or None if no
    grid fits."""
    # If the grid is unknown, first try a square grid plus class token rows, as in `vit_jax`. Then
    # try the target grid, and finally a square grid without class token rows, as in big_vision.
    # `class_row` excludes layouts without class token rows.
    with_row = [int(class_tokens), 0][: 1 if class_row else 2] if class_tokens else [0]
    if known_grid is not None:
        candidates = [(tuple(known_grid), row) for row in with_row]
    else:
        sides = [math.isqrt(num_positions - row) for row in with_row]
        candidates = [((n, n), row) for n, row in zip(sides, with_row)]
        candidates[1:1] = [(tuple(target_grid), row) for row in with_row]
    for grid, row in candidates:
        if math.prod(grid) + row == num_positions:
            return grid, row
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
    """Computes Keys' cubic convolution kernel."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x**2 + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _torch_bicubic_matrix(old, new, offset=0.0):
    """Returns the matrix of PyTorch's bicubic interpolation without antialiasing, at scale `(new +
    offset) / old`."""
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
    return np.maximum(1 - np.abs(source[:, None] - np.arange(old)), 0.0)


def _antialias_matrix(old, new, kernel):
    """Returns the matrix of antialiased interpolation, as in Pillow and `jax.image.resize`.

    For downscaling, the kernel is stretched by `old / new`. The weights of each row sum to 1.
    """
    centers = (np.arange(new) + 0.5) * old / new
    weights = kernel((np.arange(old) + 0.5 - centers[:, None]) / max(old / new, 1))
    return weights / weights.sum(axis=1, keepdims=True)


# Resampling rules of the libraries that published the weights. Each function takes the old and new
# length of an axis and returns a matrix `(new, old)`.
RULES = {
    "zoom": _zoom_matrix,  # vit_jax; most big_vision models
    "bilinear": _torch_bilinear_matrix,  # DPT in transformers
    "bicubic": _torch_bicubic_matrix,  # most Hugging Face models; DeiT, I-JEPA and MAE
    # DINO and DINOv2 without registers.
    "bicubic_offset": lambda old, new: _torch_bicubic_matrix(old, new, 0.1),
    # most timm models; DINOv2 with registers
    "bicubic_antialias": lambda old, new: _antialias_matrix(old, new, lambda x: _cubic(x, -0.5)),
    # `jax.image.resize` of other big_vision models, such as FlexiViT
    "bilinear_antialias": lambda old, new: _antialias_matrix(
        old, new, lambda x: np.maximum(1 - np.abs(x), 0.0)
    ),
}
