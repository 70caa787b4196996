"""Loading a checkpoint into a built model, all of it or nothing."""

import math

import numpy as np

from keras_vit.checkpoints import names, positions
from keras_vit.checkpoints.archive import Archive


def load(model, source):
    """Loads a checkpoint in the original's layout into a model, for inference.

    Every array must match, the head included; only the position embedding is resampled where its grid is another.
    Nothing changes in the model unless all of the file is right.

    Args:
        model: a built model of `keras_vit.VisionTransformer` or its variants.
        source: path of an .npz file.

    Raises:
        ValueError: the file is no checkpoint, or an array is missing, left over, of another shape, or not finite.

    Reference: the original's `checkpoint.py`; both of its numberings of modules, and GroupNorm arrays of both shapes.
    """
    variables = names.original_names(model)
    with Archive(source) as archive:
        in_file = names.to_linen(archive.shapes)
        missing = sorted(variables.keys() - in_file.keys())
        left_over = sorted(in_file.keys() - variables.keys())
        if missing or left_over:
            raise ValueError(
                f"The checkpoint does not fit {model.name}: {_count('missing', missing)}; "
                f"{_count('left over', left_over)}. Received: {source}"
            )
        for name, variable in variables.items():
            _check_shape(model, name, variable, archive.shapes[in_file[name]], source)
        # Twice through the file, so that a bad array at its end leaves the model as it was, and so that
        # never more than one array is in memory.
        for name in variables:
            _check_numbers(name, archive.read(in_file[name]), source)
        for name, variable in variables.items():
            variable.assign(_fitted(model, name, variable, archive.read(in_file[name])))


def _check_shape(model, name, variable, shape, source):
    if name == names.POSITIONS:
        fits = len(shape) == 3 and shape[0] == 1 and shape[2] == variable.shape[2]
        if fits and _old_grid(model, variable, shape) is not None:
            return
        expected = f"(1, tokens, {variable.shape[2]}), tokens being those of a square grid or {variable.shape[1]}"
    else:
        expected = tuple(variable.shape)
        if name == names.EMBEDDING:
            side = model.get_layer("patches").patch_size
            expected = (side, side, expected[0] // side**2, expected[1])
        elif names.is_group_norm(name) and len(shape) == 4:
            expected = (1, 1, 1, *expected)
        if tuple(shape) == expected:
            return
    hint = ""
    if name.startswith("head/"):
        hint = f" The checkpoint was trained for {shape[-1]} classes; build the model with classes={shape[-1]}."
    raise ValueError(
        f"{name!r} of the checkpoint has another shape than the model's, {expected}.{hint} "
        f"Received: shape={tuple(shape)} in {source}"
    )


def _check_numbers(name, array, source):
    if array.dtype.kind != "f":
        raise ValueError(f"{name!r} of the checkpoint must hold floats. Received: dtype={array.dtype} in {source}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name!r} of the checkpoint holds NaN or infinity. Received: {source}")


def _fitted(model, name, variable, array):
    """The array as the variable wants it."""
    if name == names.POSITIONS:
        new_grid = model.get_layer("position_embedding").grid
        return positions.resample(array, _old_grid(model, variable, array.shape), new_grid)
    return array.reshape(variable.shape)


def _old_grid(model, variable, shape):
    new_grid = model.get_layer("position_embedding").grid
    class_tokens = variable.shape[1] - math.prod(new_grid)
    return positions.source_grid(shape[1] - class_tokens, new_grid)


def _count(what, items):
    if not items:
        return f"nothing {what}"
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return f"{len(items)} {what} ({', '.join(items[:5])}{more})"
