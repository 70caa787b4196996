"""Opening a checkpoint of any dialect, with its arrays in the layout of the JAX reference."""

import contextlib
import dataclasses
import json
import re

from keras_vit.checkpoints import bit_names, huggingface_names, timm_names
from keras_vit.checkpoints.big_vision_names import from_big_vision
from keras_vit.checkpoints.npz import NpzFile
from keras_vit.checkpoints.safetensors import SafetensorsFile
from keras_vit.checkpoints.vit_jax_names import from_vit_jax
from keras_vit.preprocessing import Preprocessing

# The archive's comment, which `save` writes if the layout does not say everything. Other readers ignore it.
_COMMENT = re.compile(r"keras_vit( grid ([1-9]\d{0,5})x([1-9]\d{0,5}))?( preprocessing (\{.*\}))?")


@dataclasses.dataclass
class Checkpoint:
    """A checkpoint that is open for reading.

    Attributes:
        dialect: "vit_jax" (big_vision included), "timm", "huggingface" or "bit".
        arrays: `{name in vit_jax: LazyArray}`, the weights. Names that the dialect's table does not know stay as they
            are in the file.
        other_arrays: `{name in the file: LazyArray}`, arrays that are not weights, such as an optimizer's state.
        grid: `(rows, columns)` that the file itself gives for its positions, or None.
        preprocessing: fields of the `Preprocessing` of the model that was saved, or None.
    """

    dialect: str
    arrays: dict
    other_arrays: dict
    grid: tuple | None
    preprocessing: dict | None = None

    @property
    def shapes(self):
        """`{name in vit_jax: shape}` of the weights."""
        return {name: array.shape for name, array in self.arrays.items()}


@contextlib.contextmanager
def open_checkpoint(path, subtree="", num_heads=None):
    """Opens a file of weights for the length of a `with`.

    Args:
        path: a local .npz or .safetensors file.
        subtree: where in an .npz file the weights are, such as "params/img"; "" searches the usual places.
        num_heads: number of attention heads, which no shape in PyTorch's files shows; or None.

    Yields:
        A `Checkpoint`. Only headers have been read.

    Raises:
        ValueError: the file cannot be read as a checkpoint.
    """
    reader = SafetensorsFile if str(path).endswith(".safetensors") else NpzFile
    with reader(path) as file:
        arrays = dict(file.arrays)
        grid, preprocessing = parse_comment(file.comment)
        if timm_names.MARKER in arrays:
            yield Checkpoint("timm", timm_names.from_timm(arrays, num_heads), {}, grid)
        elif huggingface_names.MARKER in arrays or f"vit.{huggingface_names.MARKER}" in arrays:
            yield Checkpoint("huggingface", huggingface_names.from_huggingface(arrays, num_heads), {}, grid)
        elif bit_names.MARKER in arrays:
            yield Checkpoint("bit", bit_names.from_bit(arrays), {}, grid, preprocessing)
        else:
            weights, other_arrays = from_vit_jax(arrays, subtree)
            yield Checkpoint("vit_jax", from_big_vision(weights), other_arrays, grid, preprocessing)


def make_comment(grid=None, preprocessing=None):
    """The archive's comment, bytes; `grid` is `(rows, columns)`, `preprocessing` fields, both may be None."""
    words = [] if grid is None else [f"grid {grid[0]}x{grid[1]}"]
    words += [] if preprocessing is None else [f"preprocessing {json.dumps(preprocessing)}"]
    return " ".join(["keras_vit", *words]).encode() if words else b""


def parse_comment(comment):
    """`(grid, preprocessing)` of an archive's comment; None for what it does not say."""
    match = _COMMENT.fullmatch(comment)
    if not match:
        return None, None
    grid = (int(match[2]), int(match[3])) if match[1] else None
    try:
        return grid, match[5] and Preprocessing.from_config(json.loads(match[5])).to_config()
    except (ValueError, TypeError):
        return grid, None
