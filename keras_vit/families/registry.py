"""The registry of model families: constructors of named sizes, and fields of configs."""

import contextlib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_vit.arguments import check_arguments, did_you_mean, parameters_of
from keras_vit.checkpoints import inference, published
from keras_vit.checkpoints.registry import FAMILIES, Family, find_sizes
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
_STORED_AS = {Sequence: tuple, list: tuple, Mapping: dict}


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
            arguments = dict(self.table[size])
            if kwargs.get("weights") is not None:
                arguments |= self._arguments_of_weights(size, default_shape, kwargs)
            return self.constructor(**{**arguments, **kwargs}, name=name)

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


def constructor_arguments(family: Family, fields: Mapping[str, Any]) -> dict[str, Any]:
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
