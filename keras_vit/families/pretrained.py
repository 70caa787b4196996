"""Builds models from files of weights: `from_pretrained`."""

import os
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.arguments import check_arguments
from keras_vit.checkpoints import hub, inference, published
from keras_vit.checkpoints.loading import LoadOptions, load_into
from keras_vit.families.registry import find_family
from keras_vit.layers.validation import check_choice

# None for these arguments means the value of the file.
_OF_THE_FILE = ("classes", "preprocessing", "weights")


def from_pretrained(
    source: str | os.PathLike,
    *,
    tower: str = "image",
    head: str = "keep",
    channels: str | None = None,
    source_grid: tuple[int, int] | None = None,
    **overrides: Any,
) -> keras.Model:
    """Builds a model that matches a checkpoint and loads the weights.

    Args:
        source: path of an .npz or .safetensors file; path of a Hugging Face folder with a
            config.json; a Hugging Face repository, such as "facebook/dinov2-base" or
            "timm/vit_base_patch14_dinov2.lvd142m"; a published file as "collection:name", such as
            "imagenet21k:ViT-B_16"; or an https or gs URL.
        tower: "image"; "text" for the text tower of CLIP or SigLIP, a `TextTransformer`; "both" for
            a `TwoTowers`. With "both", overrides are arguments of the image tower, but `dropout`,
            `dtype`, `mlp` and `remat` apply to both towers and `tokenizer` to the text tower.
        head: see `checkpoints.load`. "new" with `classes` adds a new head for fine-tuning, even if
            the file has none.
        channels, source_grid: see `checkpoints.load`.
        **overrides: model arguments, such as `classes`, `input_shape`, `include_top`, `dropout` or
            `preprocessing`, that replace the arguments of the file. `classes` and `preprocessing`
            of None are those of the file. `num_heads` is required if the file does not determine
            it. If `patch_size` changes, the patch kernel is resized as in FlexiViT.

    Returns:
        A `keras.Model` with the weights.

    Raises:
        ValueError: the file is not a checkpoint of a known family, does not determine the model or
            does not match the overrides; or the file has no head, and only one of `classes` and
            `head="new"` is passed.
        TypeError: an override is not an argument of the model.
        ConnectionError: the download failed.
    """
    check_choice("tower", tower, TOWERS)
    model, _ = TOWERS[tower](
        source, head=head, channels=channels, source_grid=source_grid, **overrides
    )
    return model


def build_and_load(source, *, head="keep", channels=None, source_grid=None, **overrides):
    """Builds and loads a model like `from_pretrained`, and returns it with its `LoadReport`."""
    if overrides.get("weights") is not None:
        raise ValueError(
            "`weights` must not be set, because `source` names the weights. Received: "
            f"weights={overrides['weights']!r}, source={source!r}"
        )
    overrides = {
        name: value
        for name, value in overrides.items()
        if value is not None or name not in _OF_THE_FILE
    }
    family, arguments, source = _family_of_source(source, overrides.get("num_heads"), source_grid)
    check_arguments(family.constructor, overrides)
    overrides = _with_new_head(overrides, arguments, head, source)
    if "exact_gelu" in overrides and arguments.get("mlp") not in (None, "swiglu"):
        overrides.setdefault("mlp", None)
    patch_size = arguments.get("patch_size")
    resizes = overrides.get("patch_size", patch_size) != patch_size
    if resizes:
        arguments.setdefault("position_resampling", "bilinear_antialias")
    arguments |= overrides  # what the caller says wins over the file
    _check_determined(arguments, source)
    model = family.constructor(**arguments)
    options = LoadOptions(head, source_grid, channels, resizes)
    return model, load_into(model, source, options, given=list(overrides))


def _family_of_source(source, num_heads, source_grid):
    """Returns the family and arguments of the model in a source, and the source of its weights.

    The source of published weights on the Hub is the name of their repository.
    """
    entry = published_entry(source)
    if entry and not entry.url.startswith(hub.URL):
        family = find_family(entry.model)
        return family, _arguments_of_entry(entry, family, source), source
    source = entry.url.removeprefix(hub.URL) if entry else source
    return *inference.find_arguments(source, num_heads, source_grid), source


def _check_determined(arguments, source):
    """Raises a `ValueError` if the image size or the GELU of a model is unknown."""
    if "input_shape" not in arguments and "patch_size" in arguments:
        raise ValueError(
            "`input_shape` is required, because the file does not determine the image size. "
            "`source_grid` is required too if the file's position embeddings do not form a square "
            f"grid. Received: source={source!r}"
        )
    if arguments.get("mlp") == "unknown":
        raise ValueError(
            '`mlp` is required, because the file does not determine the GELU: "quick_gelu" for '
            'OpenAI and DFN weights, "gelu" for LAION and DataComp weights. Received: '
            f"source={source!r}"
        )


def published_entry(source):
    """Returns the published file that a name such as "augreg:B_16" means; None if it is no name."""
    if not published.is_name(source):
        return None
    entries = published.entries_of(source)
    if not published.file_name(source):
        names = ", ".join(f"{entry.collection}:{entry.name}" for entry in entries)
        raise ValueError(
            f"`source` must name one file of the collection {source!r}: {names}. To select the "
            f"file by size, pass weights={source!r} to the constructor of a size. Received: "
            f"source={source!r}"
        )
    return entries[0]


def _arguments_of_entry(entry, family, source):
    """Returns the arguments of the model in a published file, and downloads the file."""
    arguments = {**family.sizes[entry.model], **entry.arguments}
    if entry.representation_size:
        arguments["representation_size"] = entry.representation_size
    if entry.resolution:
        arguments["input_shape"] = (entry.resolution, entry.resolution, 3)
    path = published.resolve(source, [entry.model]).path
    classes = entry.classes
    if classes is None:
        classes = inference.find_arguments(path)[1].get("classes")
    return arguments | ({"classes": classes} if classes else {"include_top": False})


def _with_new_head(overrides, arguments, head, source):
    """Returns the overrides, with a head if one is requested and the file has none."""
    wants_head = "include_top" not in overrides and (head == "new" or "classes" in overrides)
    if not wants_head or arguments.get("include_top") is not False:
        return overrides
    if head != "new" or "classes" not in overrides:
        raise ValueError(
            'The file has no head. To add a new one, pass `head="new"` and `classes`. '
            f"Received: head={head!r}, classes={overrides.get('classes')} for source={source!r}"
        )
    return {**overrides, "include_top": True}


# Functions that build and load the models that `tower` of `from_pretrained` names.
TOWERS: dict[str, Callable] = {"image": build_and_load}
