"""Writing a model's weights in the original's layout."""

import os
import zipfile

import numpy as np

from keras_vit.checkpoints import bit_names, names
from keras_vit.checkpoints.dialects import GRID


def save(model, path):
    """Writes the weights of a model as an .npz file in the layout of the published ones.

    The original code and timm read it: the published numbering of modules, convolution kernels `(height, width, in,
    out)`, GroupNorm arrays `(1, 1, 1, C)`, float32; a pre-activation BiT ResNet gets the names of the published BiT
    files. `load` gives back every number bit for bit. Where the grid of patches is not square, which the original does
    not have, an array `keras_vit/grid` says what it is; other readers leave it alone.

    The layout has no place for exact GELU, another epsilon or fixed positions: who loads the file must build the
    same model. What only big_vision has (a MAP head, no position for the class token) gets big_vision's names inside
    the same layout; a class token without a position is written with a position of zeros, which is the same model.

    Args:
        model: a built model of `keras_vit.VisionTransformer`, `keras_vit.BiTResNet` or their variants.
        path: where to write, ending in ".npz". An existing file is replaced, at the end and at once.

    Raises:
        ValueError: the path does not end in ".npz", cannot be written, or the model is none of these.
    """
    path = os.fspath(path)
    if not path.endswith(".npz"):
        raise ValueError(f'The path of a checkpoint must end in ".npz". Received: path={path!r}')
    shapes = names.original_shapes(model)
    variables = names.original_names(model)
    if names.EMBEDDING not in shapes and not any("conv_root" in name for name in shapes):
        raise ValueError(f"Only models of this library have the original's layout. Received: model={model.name!r}")
    part = f"{path}.{os.getpid()}.part"
    try:
        with zipfile.ZipFile(part, "w", allowZip64=True) as archive:
            for name, variable in variables.items():
                array = np.asarray(variable).astype(np.float32).reshape(shapes[name])
                _write(archive, *_published(name, array, model, shapes))
            grid = _grid_to_tell(model)
            if grid is not None:
                _write(archive, GRID, np.array(grid, np.int32))
        os.replace(part, path)
    except OSError as error:
        raise ValueError(f"The checkpoint cannot be written ({error}). Received: path={path!r}") from error
    finally:
        if os.path.exists(part):
            os.unlink(part)


def _published(name, array, model, shapes):
    if "root_block/conv_root/kernel" in shapes:
        return bit_names.to_bit(name, array)
    if names.is_group_norm(name):
        array = array.reshape(1, 1, 1, -1)
    if name == names.POSITIONS and names.CLASS_TOKEN in shapes:
        rows, columns = model.get_layer("position_embedding").grid
        if array.shape[1] == rows * columns:
            array = np.concatenate([np.zeros_like(array[:, :1]), array], axis=1)
    return names.to_published(name), array


def _grid_to_tell(model):
    """The grid of a model's positions where a reader could not know it: where it is not square."""
    for layer in model.layers:
        if layer.name == "position_embedding" and hasattr(layer, "pos_embedding"):
            rows, columns = layer.grid
            return None if rows == columns else layer.grid
    return None


def _write(archive, name, array):
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
