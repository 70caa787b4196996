"""The registry of model families, which `keras_vit.families` fills."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_vit.arguments import parameters_of
from keras_vit.checkpoints.dialects.dialect import Dialect
from keras_vit.checkpoints.dialects.facts import Facts


@dataclass(frozen=True)
class PublishedWeights:
    """A file of published weights.

    Attributes:
        collection: name for `weights=`, such as "imagenet21k".
        name: name of the file without its extension, or name of its repository on the Hugging Face
            Hub.
        model: name of the size, such as "ViT-B/16".
        url: URL of the file or of its repository.
        classes: number of classes of the head; 0 without a head, None if unknown.
        resolution: side, in pixels, of the images in the last training phase; None if unknown.
        representation_size: number of units of the layer `pre_logits`; 0 if the model has no such
            layer.
        preprocessing: fields of a `Preprocessing`.
        arguments: arguments of the model that override the arguments of its size.
    """

    collection: str
    name: str
    model: str
    url: str
    classes: int | None = None
    resolution: int | None = None
    representation_size: int = 0
    preprocessing: Mapping[str, Any] = field(
        # As in `vit_jax`: resize without keeping the aspect ratio, and scale pixels to [-1, 1].
        default_factory=lambda: {
            "mean": [127.5] * 3,
            "std": [127.5] * 3,
            "resize": "stretch",
            "crop_fraction": 1.0,
        }
    )
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        constructor: function that builds a model of any size.
        sizes: `{name: constructor arguments}`.
        identity: names of the arguments that identify a size.
        infer: function that takes the shapes of weights, `{canonical name: shape}`, and the `Facts`
            of a checkpoint. It returns constructor arguments, or None for weights of another
            family.
        dialects: dialects of the libraries that store its weights.
        published: files of published weights.
        rules: `{collection: (rule, parse)}` for files that `published` does not list. `rule`
            describes their names, and `parse` converts a name to a `PublishedWeights`, or to None
            if the name does not follow the rule.
        reference: URL of the reference implementation, or the paper section that defines the
            family.
        functions: `{name: function}` of the constructors of the sizes.
        optional_prefix: prefix of the names of sizes that users and recipes may omit.
    """

    constructor: Callable[..., keras.Model]
    sizes: dict[str, dict[str, Any]] = field(default_factory=dict)
    identity: tuple[str, ...] = ()
    infer: Callable[[Mapping, Facts], dict | None] | None = None
    dialects: tuple[Dialect, ...] = ()
    published: tuple[PublishedWeights, ...] = ()
    rules: Mapping[str, tuple[str, Callable[[str], PublishedWeights | None]]] = field(
        default_factory=dict
    )
    reference: str = ""
    functions: Mapping[str, Callable[..., keras.Model]] = field(default_factory=dict)
    optional_prefix: str = ""

    def builds(self, name: str) -> bool:
        """Returns whether the constructor is, or inherits from, the class or function `name`."""
        bases = getattr(self.constructor, "__mro__", (self.constructor,))
        return name in [base.__name__ for base in bases]

    def shares_weights(self, other: "Family") -> bool:
        """Returns whether one family's model class is, or inherits from, that of the other."""
        return self.builds(other.constructor.__name__) or other.builds(self.constructor.__name__)

    def accepted(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments that are stored in a file of keras_vit.

        Empty arguments that only earlier versions had are removed.
        """
        known = parameters_of(self.constructor)
        return {name: value for name, value in stored.items() if value or name in known}


FAMILIES: list[Family] = []
"""Every registered family, in the order of registration."""
WRITERS: dict[type, Callable[..., None]] = {}
"""Maps classes of models with several towers to the functions `(model, path, format)` that save
these models."""


def find_size(arguments: Mapping[str, Any]) -> str | None:
    """Returns the name of the size with these arguments, such as "ViT-B/16", or None."""
    return next(iter(find_sizes(arguments)), None)


def find_sizes(arguments: Mapping[str, Any]) -> list[str]:
    """Returns the names of all sizes with these arguments.

    Names from families with a longer `identity` come first.
    """
    found = []
    for family in sorted(FAMILIES, key=lambda family: -len(family.identity)):
        values = [_plain(arguments.get(name)) for name in family.identity]
        found += [
            name
            for name, size in family.sizes.items()
            if values == [_plain(size.get(key)) for key in family.identity]
        ]
    return found


def _plain(value):
    """Normalizes a value for comparison: lists become tuples, and 0, False and "" become None."""
    if isinstance(value, list):
        return tuple(value)
    return None if value in (0, False, "") else value


def dialects(model_class: type = object) -> list[Dialect]:
    """Returns the dialects that may write models of a class.

    These are the dialects of the nearest base class that has any, and those of families whose
    constructor is a function. If no base class has any, these are the dialects of all families. The
    dialects of the most recently added families come first.
    """
    with_dialects = [family.constructor for family in FAMILIES if family.dialects]
    base = next((base for base in model_class.__mro__ if base in with_dialects), None)
    return [
        dialect
        for family in reversed(FAMILIES)
        if base in (None, family.constructor) or not isinstance(family.constructor, type)
        for dialect in family.dialects
    ]
