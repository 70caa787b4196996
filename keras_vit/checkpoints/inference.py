"""Which model a checkpoint is of, from the names and shapes of its arrays."""

import os
from typing import Any

from keras_vit.checkpoints import published, registry
from keras_vit.checkpoints.formats import open_checkpoint
from keras_vit.preprocessing import Preprocessing


def infer_architecture(
    source: str | os.PathLike, num_heads: int | None = None, grid: tuple[int, int] | None = None
) -> tuple[str, dict[str, Any]]:
    """Returns the model that loads a checkpoint completely.

    Args:
        source: a path or URL, as `load` takes it.
        num_heads: attention heads; needed if neither the file nor a published size shows them (timm, Hugging Face).
        grid: `(rows, columns)` of the patches; needed if the file has no positions, or a grid that is not square.

    Returns:
        `(name, arguments)`: a constructor of `keras_vit`, such as "VisionTransformer", and its keyword arguments.

    Raises:
        ValueError: the file is not a checkpoint, is of no known family, or shows too little without `num_heads` or
            `grid`.
    """
    family, arguments = find_arguments(source, num_heads, grid)
    if "input_shape" not in arguments and "patch_size" in arguments:
        raise ValueError(
            "The file has no positions, or not those of a square: give the `grid` of the patches, or the model's "
            f"`input_shape`. Received: {source}"
        )
    return family.constructor.__name__, arguments


def find_arguments(source, num_heads=None, grid=None):
    """`(Family, arguments)` of the model of a checkpoint; "input_shape" is left out if its grid is not known."""
    resolved = published.resolve(source)
    with open_checkpoint(resolved.path, resolved.subtree, num_heads) as checkpoint:
        facts = dict(checkpoint.facts)
        if grid is not None:
            facts["grid"] = grid
        if num_heads is not None:
            facts["num_heads"] = num_heads
        family, arguments = registry.infer(checkpoint.shapes, facts)
        unknown_kind = checkpoint.unknown_kind
    missing = [name for name in registry.STRUCTURE if name in arguments and arguments[name] is None]
    missing = [name for name in missing if name != "resnet_blocks"]  # which a model may lack
    if family is None or (unknown_kind and (missing or "input_shape" not in arguments)):
        raise ValueError(f"{registry.no_family(unknown_kind)} Received: {source}")
    if missing == ["num_heads"]:
        raise ValueError(
            "The file does not show the number of attention heads, and its size is not a published one: give "
            f"`num_heads`. Received: hidden_size={arguments['hidden_size']} in {source}"
        )
    if missing:
        raise ValueError(f"The file does not show {', '.join(missing)} of a known model. Received: {source}")
    return family, arguments


def find_preprocessing(source: str | os.PathLike) -> Preprocessing | None:
    """Returns the preprocessing of the model that published weights or a file come from, or None if it is not known.

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
