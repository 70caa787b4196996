"""The model families that checkpoints know: a list that `keras_vit.families` fills."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras

# Two models with different values of these arguments, if both are known, have different architectures.
STRUCTURE = (
    *("patch_size", "hidden_size", "num_layers", "mlp_dim", "num_heads", "resnet_blocks"),
    *("depth", "width_factor", "version"),
)
# Parts of blocks and tokens that shapes show. A model and a file must agree in all of them.
PARTS = ("num_registers", "layer_scale", "mlp_norm", "qk_norm", "pre_norm", "patch_bias", "attention_norm", "distilled")

# Arguments that change the outputs of a model but that no array shows.
NUMERICS = ("exact_gelu", "epsilon", "mlp", "rotary")


@dataclasses.dataclass(frozen=True)
class Format:
    """How a library names and lays out the weights of a family.

    Attributes:
        name: of the library, such as "timm".
        marker: regular expression; a file that has an array of this name may be in this format.
        renames: `(pattern, replacement)` pairs. The first pattern that matches a whole name replaces it by the path of
            a variable or a canonical name; other names do not change. In a replacement, "a|b|c" as one part of the path
            splits the array into equal parts along its output axis (an empty part is dropped), and "*" numbers the
            slices along its first axis. "" means that the array is not a weight of the model. With the layout
            "pytorch", replacements omit the last part of a name, "weight" or "bias", and patterns may omit it.
        layout: "keras" or "pytorch".
        prefixes: possible prefixes of all weights; arrays without the prefix are not weights.
        facts: arguments of the model that no array shows.
        read_config: maps the parsed config.json next to a file to facts that override `facts`; None to ignore it.
        fits: maps `{name in the file: shape}` and the parsed config.json, or {}, to whether the file is in this
            format; None if names are enough. Takes precedence over a format with the same names without `fits`.
        write_config: maps the arguments of a model to a config.json for the library and options for
            `checkpoints.writing`. Instead of the config.json, it returns None if the format is for other models, or a
            string, the reason why it does not support this one. None if the format is read-only.
    """

    name: str
    marker: str
    renames: tuple[tuple[str, str], ...]
    layout: str = "keras"
    prefixes: tuple[str, ...] = ("",)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    read_config: Callable[[dict], dict] | None = None
    fits: Callable[[Mapping[str, tuple], dict], bool] | None = None
    write_config: Callable[[Mapping[str, Any]], tuple[dict | str | None, dict]] | None = None


@dataclasses.dataclass(frozen=True)
class PublishedWeights:
    """A published file.

    Attributes:
        collection: what `weights=` calls it, such as "imagenet21k".
        name: name of the file, without its extension.
        model: name of the size, such as "ViT-B/16" or "BiT-R50x1".
        url: URL of the file.
        classes: units of its head, 0 for none, or None if unknown.
        resolution: side, in pixels, of the images of its last training, or None.
        representation_size: units of `pre_logits`, 0 for none.
        preprocessing: fields of a `Preprocessing`.
        arguments: arguments of the model that differ from those of its size.
    """

    collection: str
    name: str
    model: str
    url: str
    classes: int | None = None
    resolution: int | None = None
    representation_size: int = 0
    preprocessing: Mapping[str, Any] = dataclasses.field(
        # For all of its files, `vit_jax` resizes both sides and scales to [-1, 1].
        default_factory=lambda: {"mean": [127.5] * 3, "std": [127.5] * 3, "resize": "stretch", "crop_fraction": 1.0}
    )
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        constructor: builds a model of any size.
        sizes: `{name: arguments of the constructor}`.
        identity: the arguments that identify a size.
        infer: maps the shapes of weights, `{canonical name: shape}`, and facts to the arguments of the constructor that
            they show, with the "grid" of patches, `(rows, columns)`, in place of "input_shape"; None for weights of
            another family.
        formats: how libraries name its weights.
        published: its published files.
        rules: `{collection: (rule, parse)}` for files that `published` does not list: a description of their names, and
            a function from a name to a `PublishedWeights`, or None for other names.
        reference: the implementation that outputs are compared with.
    """

    constructor: Callable[..., keras.Model]
    sizes: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    identity: tuple[str, ...] = ()
    infer: Callable[[Mapping, Mapping], dict | None] | None = None
    formats: tuple[Format, ...] = ()
    published: tuple[PublishedWeights, ...] = ()
    rules: Mapping[str, tuple[str, Callable[[str], PublishedWeights | None]]] = dataclasses.field(default_factory=dict)
    reference: str = ""


FAMILIES: list[Family] = []
"""Every registered family, in the order of registration."""


def find_size(arguments: Mapping[str, Any]) -> str | None:
    """Returns the name of the size with these arguments, such as "ViT-B/16", or None."""
    return next(iter(find_sizes(arguments)), None)


def find_sizes(arguments: Mapping[str, Any]) -> list[str]:
    """Returns the names of all sizes with these arguments, most specific first; MAE and the paper share ViT-L/16."""
    found = []
    for family in sorted(FAMILIES, key=lambda family: -len(family.identity)):
        numbers = [_plain(arguments.get(name)) for name in family.identity]
        sizes = family.sizes.items()
        found += [name for name, size in sizes if numbers == [_plain(size.get(key)) for key in family.identity]]
    return found


def _plain(value):
    """Normalizes a value for comparison: an argument that is off equals one that is not set."""
    return tuple(value) if isinstance(value, list) else None if value in (0, False, "") else value


def infer(shapes: Mapping[str, tuple], facts: Mapping[str, Any]) -> tuple[Family | None, dict[str, Any]]:
    """Returns the family of weights and the arguments of its constructor; shapes take precedence over `facts`."""
    constructor, stored = facts.get("constructor"), facts.get("arguments", {})
    candidates = [f for f in reversed(FAMILIES) if constructor in (None, f.constructor.__name__)]
    for family in candidates:
        arguments = None if family.infer is None else family.infer(shapes, facts)
        if arguments is not None:
            shown = {name: arguments[name] for name in STRUCTURE if arguments.get(name) is not None}
            return family, {**arguments, **stored, **shown}
    return (candidates[0], dict(stored)) if constructor and candidates else (None, {})


def no_family(kind: str = "") -> str:
    """Returns a sentence for files of an unknown family, with the kind in the config.json if there is one."""
    known = dict.fromkeys(name.partition("-")[0] for family in FAMILIES for name in family.sizes)
    said = f" ({kind!r} by its config.json)" if kind else ""
    return f"The file contains no weights{said} of a known family; the families are {', '.join(known)}."


def describe(family: Family | None, arguments: Mapping[str, Any]) -> str:
    """Returns a description of an architecture for messages."""
    if family is None:
        return "of an unknown family"
    numbers = {name: arguments[name] for name in (*STRUCTURE, *PARTS, "mlp", "attention_bias") if arguments.get(name)}
    alike = {name for other in FAMILIES if other.constructor is family.constructor for name in other.sizes}
    name = next((name for name in find_sizes(arguments) if name in alike), family.constructor.__name__)
    return f"{name} ({', '.join(f'{key}={value}' for key, value in numbers.items())})"
