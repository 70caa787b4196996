"""Writing a model's weights in the layout of the published files."""

import json
import os
import zipfile

import keras
import numpy as np

from keras_vit import files
from keras_vit.checkpoints import bit_names, vit_jax_names
from keras_vit.checkpoints.dialects import COMMENT
from keras_vit.preprocessing import Preprocessing


def save(model: keras.Model, path: str | os.PathLike) -> None:
    """Writes the weights of a model as an .npz file in the layout of the published ones.

    `vit_jax` and timm read it: the published numbering of modules, convolution kernels `(height, width, in, out)`,
    GroupNorm arrays `(1, 1, 1, C)`, float32; a pre-activation BiT ResNet gets the names of the published BiT files.
    `load` restores every number bit for bit. The archive's comment, which other readers ignore, holds what the layout
    cannot say: the GELU, the epsilon, a grid of patches that is not square, and another preprocessing than that of the
    published files.

    The layout has no place for fixed positions: the model that loads the file must be built with them. Parts that only
    big_vision has (a MAP head) get big_vision's names inside the same layout; a class token without a position is
    written with a position of zeros, which is the same model.

    Args:
        model: a built model of `keras_vit.VisionTransformer`, `keras_vit.BiTResNet` or their variants.
        path: a local path, ending in ".npz". An existing file is replaced once the new one is complete.

    Raises:
        ValueError: the path does not end in ".npz" or cannot be written, the model is of other layers, or has
            adapters of LoRA.
    """
    path = os.fspath(path)
    if not path.endswith(".npz"):
        raise ValueError(f'The path of a checkpoint must end in ".npz". Received: path={path!r}')
    if files.is_remote(path):
        raise ValueError(f"The checkpoint cannot be written: its path must be a local one. Received: path={path!r}")
    if any("lora_kernel" in variable.path for variable in model.variables):
        raise ValueError(
            "Adapters of LoRA have no place in this layout; saving the model as .keras adds them to the kernels, and "
            f"what is loaded from there can be saved here. Received: model={model.name!r}"
        )
    shapes, variables = vit_jax_names.vit_jax_shapes(model), vit_jax_names.vit_jax_variables(model)
    if vit_jax_names.first_kernel(shapes) is None:
        raise ValueError(
            "Only models of keras_vit, with their layer names, can be saved as a checkpoint. "
            f"Received: model={model.name!r}"
        )
    try:
        with files.atomic_path(path) as part, zipfile.ZipFile(part, "w", allowZip64=True) as archive:
            for name, variable in variables.items():
                array = np.asarray(variable).astype(np.float32).reshape(shapes[name])
                _write_array(archive, *_to_published(name, array, model, shapes))
            archive.comment = (COMMENT + json.dumps(_facts(model))).encode()
    except OSError as error:
        raise ValueError(f"The checkpoint cannot be written ({error}). Received: path={path!r}") from error


def _facts(model):
    """What the layout does not say about a model, for the comment of the archive."""
    facts = {
        **numerics_of(model),
        "grid": _grid_if_not_square(model),
        "preprocessing": _preprocessing_if_unusual(model),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _to_published(name, array, model, shapes):
    """`(name, array)` as the published files have them, for a name and an array of `vit_jax`."""
    if vit_jax_names.BIT_ROOT in shapes:
        return bit_names.to_bit(name, array)
    if vit_jax_names.is_group_norm(name):
        array = array.reshape(1, 1, 1, -1)
    if name == vit_jax_names.POSITIONS and vit_jax_names.CLASS_TOKEN in shapes:
        rows, columns = model.grid
        if array.shape[1] == rows * columns:
            array = np.concatenate([np.zeros_like(array[:, :1]), array], axis=1)
    return vit_jax_names.to_published_name(name), array


def _grid_if_not_square(model):
    """`(rows, columns)` of a model whose positions or distances a reader would take for a square's, else None."""
    grid = getattr(model, "grid", None)
    has_table = any(variable.path.endswith(("/pos_embedding", "/relative_embedding")) for variable in model.variables)
    return grid if grid is not None and has_table and grid[0] != grid[1] else None


def _preprocessing_if_unusual(model):
    """The fields of a model's `Preprocessing`, if its images are not scaled to [-1, 1]; else None."""
    for layer in model.layers:
        if layer.name == "expected_images":
            usual = Preprocessing().for_channels(layer.preprocessing.channels)
            is_usual = (layer.preprocessing.mean, layer.preprocessing.std) == (usual.mean, usual.std)
            return None if is_usual else layer.preprocessing.to_config()
    return None


def numerics_of(model):
    """`exact_gelu` and `epsilon` of a model's Transformer blocks; {} if it has none."""
    block = next((layer for layer in model.layers if hasattr(layer, "exact_gelu")), None)
    return {} if block is None else {"exact_gelu": block.exact_gelu, "epsilon": block.epsilon}


def _write_array(archive, name, array):
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
