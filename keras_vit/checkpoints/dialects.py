"""Opening a checkpoint of any dialect, as if it were in the original's layout."""

import contextlib
import dataclasses

import numpy as np

from keras_vit.checkpoints import bit_names, huggingface_names, timm_names
from keras_vit.checkpoints.archive import Archive
from keras_vit.checkpoints.big_vision_names import from_big_vision
from keras_vit.checkpoints.names import from_original
from keras_vit.checkpoints.safetensors import SafetensorsFile

# What `save` adds where the grid of patches is not square; other readers leave it alone.
GRID = "keras_vit/grid"


@dataclasses.dataclass
class Checkpoint:
    """A checkpoint that is open for reading.

    Attributes:
        dialect: "original" (big_vision included), "timm", "huggingface" or "bit".
        arrays: `{current name in the original: Stored}`, the weights. What a dialect's names do not know keeps its own.
        others: `{name in the file: Stored}`, what lies beside the weights, such as an optimizer's state.
        grid: `(rows, columns)` that the file itself says its positions have, or None.
    """

    dialect: str
    arrays: dict
    others: dict
    grid: tuple | None


@contextlib.contextmanager
def open_checkpoint(path, subtree="", heads=None):
    """Opens a file of weights for the length of a `with`.

    Args:
        path: a local .npz or .safetensors file.
        subtree: where in an .npz file the weights are; found where it is not given.
        heads: number of attention heads, which PyTorch's files do not show in any shape.

    Yields:
        A `Checkpoint`. Nothing but headers has been read.

    Raises:
        ValueError: the file is none that can be read.
    """
    reader = SafetensorsFile if str(path).endswith(".safetensors") else Archive
    with reader(path) as file:
        arrays = dict(file.arrays)
        grid = arrays.pop(GRID, None)
        if grid is not None:
            grid = _read_grid(grid, path)
        if timm_names.MARK in arrays:
            yield Checkpoint("timm", timm_names.from_timm(arrays, heads), {}, grid)
        elif huggingface_names.MARK in arrays or f"vit.{huggingface_names.MARK}" in arrays:
            yield Checkpoint("huggingface", huggingface_names.from_huggingface(arrays, heads), {}, grid)
        elif bit_names.MARK in arrays:
            yield Checkpoint("bit", bit_names.from_bit(arrays), {}, grid)
        else:
            weights, others = from_original(arrays, subtree)
            yield Checkpoint("original", from_big_vision(weights), others, grid)


def _read_grid(stored, path):
    grid = stored.read() if stored.shape == (2,) else np.zeros(0)
    if grid.size != 2 or grid.dtype.kind not in "iu" or grid.min() < 1:
        raise ValueError(f"{GRID!r} of the checkpoint must hold two integers, rows and columns. Received: {path}")
    return tuple(int(side) for side in grid)
