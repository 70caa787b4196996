"""Finds the model of a checkpoint from the names and shapes of its arrays."""

import os
from typing import Any

from keras_vit.checkpoints import published, registry
from keras_vit.checkpoints.formats import open_checkpoint
from keras_vit.preprocessing import Preprocessing


def infer_architecture(
    source: str | os.PathLike, num_heads: int | None = None, grid: tuple[int, int] | None = None
) -> tuple[str, dict[str, Any]]:
    """Returns the constructor name and arguments of a model that can load all of a checkpoint.

    Args:
        source: a path or URL, as for `load`.
        num_heads: number of attention heads; required if neither the file nor a published size shows it.
        grid: `(rows, columns)` of the patches; required if the file has no positions or its grid is not square.

    Returns:
        `(name, arguments)`: a constructor of `keras_vit`, such as "VisionTransformer", and its keyword arguments.

    Raises:
        ValueError: the file is not a checkpoint, its family is unknown, or `num_heads` or `grid` is required.
    """
    family, arguments = find_arguments(source, num_heads, grid)
    if "input_shape" not in arguments and "patch_size" in arguments:
        raise ValueError(
            "The file has no positions, or their grid is not a square: set `grid`, or the `input_shape` of the model. "
            f"Received: {source}"
        )
    return family.constructor.__name__, arguments


def find_arguments(source, num_heads=None, grid=None):
    """Returns `(Family, arguments)` of the model of a checkpoint, without "input_shape" if the grid is unknown."""
    resolved = published.resolve(source)
    with open_checkpoint(resolved.path, resolved.subtree, num_heads) as checkpoint:
        facts = checkpoint.facts | ({"grid": grid} if grid else {}) | ({"num_heads": num_heads} if num_heads else {})
        family, arguments = registry.infer(checkpoint.shapes, facts)
        unknown_kind = checkpoint.unknown_kind
    missing = [name for name in registry.STRUCTURE if name in arguments and arguments[name] is None]
    missing = [name for name in missing if name != "resnet_blocks"]  # which a model may lack
    if family is None or (unknown_kind and (missing or "input_shape" not in arguments)):
        raise ValueError(f"{registry.no_family(unknown_kind)} Received: {source}")
    if missing == ["num_heads"]:
        raise ValueError(
            "The file does not show the number of attention heads, and its size is not a published one: set "
            f"`num_heads`. Received: hidden_size={arguments['hidden_size']} in {source}"
        )
    if missing:
        raise ValueError(f"The file must show {', '.join(missing)} of a known model. Received: {source}")
    return family, arguments


def find_preprocessing(source: str | os.PathLike) -> Preprocessing | None:
    """Returns the preprocessing that published weights or a file were trained with, or None if it is unknown.

    Raises:
        ValueError: there is no such file and no such name.
        ConnectionError: the file could not be downloaded.
    """
    if published.is_name(source):
        collection = os.fspath(source).partition(":")[0]
        listed = [row for row in published.rows() if row.collection == collection]
        return Preprocessing.from_config(dict(listed[0].preprocessing)) if listed else Preprocessing()
    resolved = published.resolve(source)
    with open_checkpoint(resolved.path, resolved.subtree) as checkpoint:
        fields = checkpoint.facts.get("preprocessing")
    return None if fields is None else Preprocessing.from_config(fields)
