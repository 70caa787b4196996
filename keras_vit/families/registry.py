"""The registry of model families: constructors of named sizes, config fields and
`from_pretrained`."""

import collections.abc
import contextlib
import inspect
import os
import typing
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.arguments import check_arguments, did_you_mean, parameters_of
from keras_vit.checkpoints import hub, inference, published
from keras_vit.checkpoints.loading import load_into
from keras_vit.checkpoints.planning import LoadOptions
from keras_vit.checkpoints.registry import FAMILIES, Family, find_sizes
from keras_vit.layers.validation import check_choice
from keras_vit.models.image_model import ImageModel
from keras_vit.models.vision_transformer import VisionTransformer

# Constructor arguments that are not fields of `config.model`, because the data or other fields set
# them or because training does not use them.
_NOT_FIELDS = (
    "classes",
    "include_top",
    "weights",
    "classifier_activation",
    "preprocessing",
    "remat",
    "name",
    "dtype",
)


# Types of fields by the type of the argument, if they differ.
_STORED_AS = {collections.abc.Sequence: tuple, list: tuple, collections.abc.Mapping: dict}


def register(family: Family) -> Family:
    """Adds a family to the registry, and returns it.

    Files are matched against the most recently added families first.
    """
    FAMILIES.append(family)
    return family


class Sizes:
    """The named sizes of a model constructor.

    Calling an instance adds a size and returns the function that builds it.

    Args:
        constructor: function or class that builds a model of any size.
        **shared: arguments that the sizes share, unless a size overrides them.

    Attributes:
        table: `{name: arguments}`, such as `{"ViT-B/16": {"patch_size": 16, ...}}`.
        functions: `{name: function}`, such as `{"ViT_B16": ViT_B16}`.
    """

    def __init__(
        self, constructor: Callable[..., keras.Model] = VisionTransformer, **shared: Any
    ) -> None:
        self.constructor = constructor
        self.shared = shared
        self.table: dict[str, dict[str, Any]] = {}
        self.functions: dict[str, Callable[..., keras.Model]] = {}

    def __call__(self, size: str, note: str, **arguments: Any) -> Callable[..., keras.Model]:
        """Adds a size and returns its constructor.

        Args:
            size: name of the size in papers, such as "ViT-B/16".
            note: text for the docstring, such as the number of parameters.
            **arguments: arguments of the constructor that define the size.
        """
        arguments = {**self.shared, **arguments}
        default_name = constructor_name(size).lower()
        default_shape = parameters_of(self.constructor)["input_shape"].default

        def build(name: str = default_name, **kwargs: Any) -> keras.Model:
            check_arguments(self.constructor, kwargs)
            of_weights: dict[str, Any] = {}
            if kwargs.get("weights") is not None:
                of_weights = self._arguments_of_weights(size, default_shape, kwargs)
            return self.constructor(**{**self.table[size], **of_weights, **kwargs}, name=name)

        parameters = [
            parameter.replace(default=default_name) if parameter.name == "name" else parameter
            for parameter in parameters_of(self.constructor).values()
            if parameter.name not in arguments
        ]
        build.__signature__ = inspect.Signature(parameters, return_annotation=keras.Model)  # type: ignore[attr-defined]
        build.__name__ = build.__qualname__ = constructor_name(size)
        build.__doc__ = f"{size}, {note}. Arguments: see `{self.constructor.__name__}`."
        self.table[size] = arguments
        self.functions[build.__name__] = build
        return build

    def _arguments_of_weights(self, size, default_shape, kwargs):
        """Returns the arguments that the argument `weights` implies, and downloads the weights.

        The download comes before the model is built, so that a wrong name fails fast.
        """
        arguments = {**self.table[size], **kwargs}
        weights = arguments["weights"]
        side = arguments.get("input_shape", default_shape)[0]
        names = find_sizes(arguments)
        names = [size] if size in names else names  # another family may have the same size
        entry = published.find(weights, names, side)
        published.resolve(weights, names, side)
        return entry.arguments if entry else _arguments_of_file(weights, arguments)

    def register(self, **fields: Any) -> Family:
        """Registers a `Family` with these sizes; the keyword arguments set its other fields."""
        return register(
            Family(self.constructor, sizes=self.table, functions=self.functions, **fields)
        )


def _arguments_of_file(path, arguments):
    """Returns the arguments that an unpublished file implies.

    They are `{"include_top": False}` for a file without a head if `classes` is not set, and {}
    otherwise.
    """
    with contextlib.suppress(ValueError):  # `checkpoints.load` reports bad files
        _, found = inference.find_arguments(path, arguments.get("num_heads"))
        if found.get("include_top") is False and arguments.get("classes") is None:
            return {"include_top": False}
    return {}


def constructor_name(size: str) -> str:
    """Returns the name of the function that builds a size: "ViT_B16" for "ViT-B/16"."""
    return size.replace("+/", "plus").replace("/", "").replace("-", "_").replace("+", "_")


def sizes() -> dict[str, dict[str, Any]]:
    """Returns every named size: `{"ViT-B/16": {"patch_size": 16, ...}, ...}`."""
    return {name: arguments for family in FAMILIES for name, arguments in family.sizes.items()}


def canonical_name(name: str) -> str:
    """Adds the prefix that a family's sizes lack in the paper; returns other names unchanged."""
    for family in FAMILIES:
        if family.optional_prefix + name in family.sizes:
            return family.optional_prefix + name
    return name


def find_family(architecture: str) -> Family:
    """Returns the family of an architecture: a size such as "ViT-B/16", or a class such as
    "VisionTransformer".

    Raises:
        ValueError: the architecture is unknown.
    """
    size = canonical_name(architecture)
    for family in FAMILIES:
        if size in family.sizes or architecture == family.constructor.__name__:
            return family
    constructors = dict.fromkeys(family.constructor.__name__ for family in FAMILIES)
    known = [*sizes(), *constructors]
    near = did_you_mean(architecture, known)
    raise ValueError(
        f"`architecture` must be one of {', '.join(known)}.{near} Received: "
        f"architecture={architecture!r}"
    )


def model_class(architecture: str) -> type[ImageModel]:
    """Returns the class of a family's models, or `ImageModel` if its constructor is a function."""
    constructor = find_family(architecture).constructor
    return constructor if isinstance(constructor, type) else ImageModel


def model_fields(architecture: str) -> dict[str, Any]:
    """Returns the `config.model` fields of an architecture: the arguments of its size, and the
    constructor's defaults.

    The value of a required argument is its type. A default of None becomes the empty value of its
    type, such as 0, "" or (), because command-line flags cannot override None. `input_shape` is (),
    because the data determines it.
    """
    family = find_family(architecture)
    size = family.sizes.get(canonical_name(architecture), {})
    fields: dict[str, Any] = {}
    for name, parameter in parameters_of(family.constructor).items():
        kind = _field_type(parameter)
        if name in _NOT_FIELDS or kind is None:
            continue
        if parameter.default is parameter.empty:
            fields[name] = kind
        else:
            fields[name] = kind() if parameter.default is None else parameter.default
    if "resnet_blocks" in size:
        fields["stem"] = "resnet"
    return {**fields, "input_shape": (), **size}


def constructor_arguments(
    family: Family, fields: collections.abc.Mapping[str, Any]
) -> dict[str, Any]:
    """Converts fields of `model_fields` to constructor arguments: an empty value becomes None if
    None is the default.

    Empty values of `stem` and `resnet_blocks` do not change.
    """
    parameters = parameters_of(family.constructor)
    arguments = dict(fields)
    for name, value in fields.items():
        if not value and name not in ("stem", "resnet_blocks") and parameters[name].default is None:
            arguments[name] = None
    return arguments


def _field_type(parameter):
    """Returns the type of a field, or None if a config cannot store the argument."""
    annotation = parameter.annotation
    if isinstance(annotation, type(int | None)):
        first, *others = typing.get_args(annotation)
        annotation = first if others == [type(None)] else annotation
    kind = typing.get_origin(annotation) or annotation
    kind = _STORED_AS.get(kind, kind)
    return kind if kind in (bool, int, float, str, tuple, dict) else None


def model_config(architecture: str, *, pre_logits: bool = False, **changes: Any) -> dict[str, Any]:
    """Returns the fields `architecture` and `model` of a config, for `recipes.defaults`.

    Args:
        architecture: a size, such as "ViT-B/16", "R50+ViT-B/16" or "R50x1", or the name of a class,
            such as "VisionTransformer".
        pre_logits: whether the head has the paper's hidden layer of `hidden_size` units. ResNets do
            not support it.
        **changes: model arguments that extend or override the arguments of the size; must not be
            None.

    Raises:
        ValueError: the architecture is unknown or does not support `pre_logits`.
    """
    name = canonical_name(architecture)
    fields = model_fields(name)
    if pre_logits:
        if "representation_size" not in fields:
            raise ValueError(
                f"`pre_logits` must be False for {name}. Received: pre_logits={pre_logits}, "
                f"architecture={name!r}"
            )
        changes = {"representation_size": fields["hidden_size"], **changes}
    family = find_family(name)
    size = family.sizes.get(name, {})
    if any(changes.get(field, value) != value for field, value in size.items()):
        name = family.constructor.__name__  # the changes define another size
    stem = {"stem": fields["stem"]} if fields.get("stem") else {}
    return {"architecture": name, "model": {**stem, **size, **changes}}


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
            `preprocessing`, that replace the arguments of the file. `num_heads` is required if the
            file does not determine it. If `patch_size` changes, the patch kernel is resized as in
            FlexiViT.

    Returns:
        A `keras.Model` with the weights.

    Raises:
        ValueError: the file is not a checkpoint of a known family, does not determine the model or
            does not match the overrides; or the file has no head, and only one of `classes` and
            `head="new"` is passed.
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
    given = [
        name for name, value in overrides.items() if name != "preprocessing" or value is not None
    ]
    options = LoadOptions(head, source_grid, channels, resizes)
    return model, load_into(model, source, options, given)


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
