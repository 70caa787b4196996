"""Infers the architecture, class names and preprocessing of a checkpoint from its arrays and
metadata."""

import os
from typing import Any

from keras_vit.checkpoints import architectures, published, registry
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.formats import open_checkpoint
from keras_vit.checkpoints.loading import LoadOptions
from keras_vit.checkpoints.metadata import read_class_names
from keras_vit.preprocessing import Preprocessing


def infer_architecture(
    source: str | os.PathLike, num_heads: int | None = None, grid: tuple[int, int] | None = None
) -> tuple[str, dict[str, Any]]:
    """Returns the constructor name and arguments of a model that can load every weight of a
    checkpoint.

    Args:
        source: a path, a repository on the Hugging Face Hub, or a URL, as for `load`.
        num_heads: number of attention heads; required if neither the file nor a published size
            determines it.
        grid: `(rows, columns)` of patches; required if the file does not determine the grid.

    Returns:
        `(name, arguments)`: a constructor of `keras_vit`, such as "VisionTransformer", and its
        keyword arguments.

    Raises:
        ValueError: the file does not exist, is not a checkpoint of a known family, or does not
            determine the model, for example because `num_heads` or `grid` is missing.
        ConnectionError: the file could not be downloaded.
    """
    family, arguments = find_arguments(source, num_heads, grid)
    if "input_shape" not in arguments and "patch_size" in arguments:
        raise ValueError(
            "The file has no position embeddings, or their grid is not square. Set `grid`, or the "
            f"`input_shape` of the model. Received: {source}"
        )
    return family.constructor.__name__, arguments


def find_arguments(source, num_heads=None, grid=None):
    """Returns `(Family, arguments)` for a checkpoint.

    The arguments lack "input_shape" if the grid is unknown.
    """
    LoadOptions(source_grid=grid)  # raises a `ValueError` for an invalid grid
    resolved = published.resolve(source)
    with open_checkpoint(resolved.path, resolved.subtree, num_heads) as checkpoint:
        facts = Facts(grid=grid, num_heads=num_heads).over(checkpoint.facts)
        family, arguments = architectures.restore(checkpoint.shapes, facts)
        unknown_kind = checkpoint.unknown_kind
    if (bits := (facts.preprocessing or {}).get("bit_depth", 8)) != 8:
        gray = ((2**bits - 1) / 2,) * 3  # `load` sets the mean and std of the file
        arguments["preprocessing"] = Preprocessing(mean=gray, std=gray, bit_depth=bits)
    _check_complete(family, arguments, unknown_kind, source)
    return family, arguments


def _check_complete(family, arguments, unknown_kind, source):
    """Raises a `ValueError` if a file does not determine the family and structure of a model."""
    # resnet_blocks may be None.
    needed = [name for name in architectures.STRUCTURE if name != "resnet_blocks"]
    missing = [name for name in needed if arguments.get(name, "") is None]
    is_incomplete = missing or "input_shape" not in arguments
    if family is None or "num_layers" in missing or (unknown_kind and is_incomplete):
        raise ValueError(f"{architectures.unknown_family_message(unknown_kind)} Received: {source}")
    if missing == ["num_heads"]:
        raise ValueError(
            "`num_heads` is required, because neither the file nor a published size determines "
            f"the number of attention heads. Received: hidden_size={arguments['hidden_size']} in "
            f"{source}"
        )
    if missing:
        raise ValueError(
            f"The file does not determine the model's {', '.join(missing)}. Received: {source}"
        )


def find_class_names(source: str | os.PathLike) -> list[str] | None:
    """Returns the class names in the config.json of timm or transformers, or None if they are
    missing or placeholders.

    Args:
        source: a path, a repository on the Hugging Face Hub, or a URL, as for `load`. For the name
            of published weights, the result is None.

    Raises:
        ValueError: the file does not exist or is not supported, or the config.json is damaged.
        ConnectionError: the file could not be downloaded.
    """
    return None if published.is_name(source) else read_class_names(published.resolve(source).path)


def find_preprocessing(
    source: str | os.PathLike,
    input_shape: tuple[int | None, ...] = (None, None, None),
    **sizes: Any,
) -> Preprocessing | None:
    """Returns the preprocessing that weights were trained with, or None if it is unknown.

    Args:
        source: a name of published weights, a path, a repository on the Hugging Face Hub, or a URL,
            as for `load`.
        input_shape, **sizes: arguments of the model, as for `find_published`; they select the file
            of a collection, or the size of the model in a repository. Without `sizes`, the result
            is None if the files of the collection differ in their preprocessing.

    Raises:
        ValueError: the source does not exist, or the file is damaged or not supported.
        ConnectionError: the file could not be downloaded.
    """
    names = registry.find_sizes(sizes)
    if published.is_name(source):
        found = published.entries_of(source)
        if sizes and not published.file_name(source):
            found = [published.find(source, names, input_shape[0])]
        known = [entry.preprocessing for entry in found]
    else:
        path, subtree, entry = published.resolve(source, names)
        with open_checkpoint(path, subtree) as checkpoint:
            # As in `load`, the table of published files replaces missing JSON files.
            known = [checkpoint.facts.preprocessing or (entry and entry.preprocessing)]
    fields = known[0] if known and all(each == known[0] for each in known) else None
    return fields and Preprocessing.from_config(dict(fields))
