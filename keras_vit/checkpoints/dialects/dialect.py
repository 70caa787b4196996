"""A dialect: a table of how a library names and stores the weights of a family.

The table serves to read files and to write them.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.checkpoints.dialects import layouts
from keras_vit.checkpoints.dialects.facts import Facts


class Packed(tuple):
    """Arrays of the model that are joined along their first axis in a file.

    None stands for an array that the model lacks; such a target is read-only.
    """

    def __new__(cls, *parts: str | None) -> "Packed":
        return super().__new__(cls, parts)


@dataclasses.dataclass(frozen=True)
class Stacked:
    """An array of every block, stacked along a new first axis in a file."""

    target: str


@dataclasses.dataclass(frozen=True)
class Token:
    """An array `(1, N, D)` of the model that has `rank` axes in a file."""

    target: str
    rank: int


@dataclasses.dataclass(frozen=True)
class Alias:
    """The target of another name, which is read and never written."""

    target: str | Packed


class Ignored:
    """The target of an array that is not a weight of the model."""


IGNORED = Ignored()
# Patterns of the fields that do not match any text.
_FIELDS = {"i": r"\d+", "kind": "weight|bias"}
# What may follow a template's target in a canonical name, and the field `{kind}` that it becomes.
_KINDS = (("", ""), ("/kernel", "weight"), ("/scale", "weight"), ("/bias", "bias"))


@dataclasses.dataclass(frozen=True)
class Folder:
    """How a dialect writes a model.

    Attributes:
        config: the config.json of the library.
        tower: the value of the field `{tower}`.
        omit: templates of the table that are not written.
        class_row: what happens to the position embedding of the class token. "" keeps it, "zeros"
            inserts zeros, and "into token" adds it to the class token.
        has_head_bias: whether the library's head has a bias.
    """

    config: dict[str, Any]
    tower: str = ""
    omit: tuple[str, ...] = ()
    class_row: str = ""
    has_head_bias: bool = True


class NotSupportedError(Exception):
    """The reason why a dialect cannot write a model.

    If several dialects cannot write it, the reason with the lowest `rank` is reported.
    """

    def __init__(self, reason: str, rank: float = 0) -> None:
        super().__init__(reason)
        self.rank = rank


def _unchanged(name: str, array: np.ndarray) -> np.ndarray:
    return array


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How a library names and stores the arrays of a family's weights.

    A template is a name with fields in braces. `{i}` is the number of a block. Other fields match
    any text, or one of `choices`.

    Attributes:
        name: name of the library, such as "timm".
        marker: template, or several; a file can have this dialect only if an array name matches.
        table: pairs of a template of names in the file and a target, which may use its fields. The
            first pair that matches a name applies; names that match no pair do not change. A target
            is a template of canonical names, a `Packed`, `Stacked`, `Token` or `Alias` of such
            templates, or `IGNORED`. In the layout "pytorch", a pair also describes the "weight" and
            "bias" of a module with this name: after a dot, or as the field `{kind}`.
        layout: "keras" or "pytorch", the order of the axes.
        prefixes: possible prefixes of weight names. The first prefix for which `marker` matches
            applies to the whole file; arrays without this prefix are not weights.
        choices: `{field: values}`, the texts that a field can have. The first one is written, or
            the `tower` of a `Folder`.
        facts: facts that hold for every file, unless the file states others.
        config: name of the JSON file next to the weights, below "the config".
        read_config: function that takes the parsed config and returns `Facts`; None to ignore the
            config.
        fits: function that takes `{name in the file: shape}` and the parsed config, or {}, and
            returns whether the file has this dialect; None if the names are sufficient. If two
            dialects recognize equally many names, the dialect with `fits` takes precedence.
        adapt: function that takes the renamed arrays, which it may change, the facts and the parsed
            config, and returns the facts; None for nothing to change.
        write_config: function that takes the arguments of a model and returns a `Folder`, or None
            if the dialect is for other models; None if the dialect is read-only. Raises a
            `NotSupportedError` with the reason if the library does not support the model.
        shape_in_file: function that takes a canonical name and an array, and returns the array as
            stored in an .npz file.
    """

    name: str
    marker: str | tuple[str, ...]
    table: tuple[tuple[str, Any], ...]
    layout: str = "keras"
    prefixes: tuple[str, ...] = ("",)
    choices: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    facts: Facts = dataclasses.field(default_factory=Facts)
    config: str = "config.json"
    read_config: Callable[[dict], Facts] | None = None
    fits: Callable[[Mapping[str, tuple], dict], bool] | None = None
    adapt: Callable[[dict, Facts, dict], Facts] | None = None
    write_config: Callable[[Mapping[str, Any]], Folder | None] | None = None
    shape_in_file: Callable[[str, np.ndarray], np.ndarray] = _unchanged

    def marks(self, names_in_file: Iterable[str]) -> bool:
        """Returns whether a name in the file matches the marker."""
        markers = [self.marker] if isinstance(self.marker, str) else self.marker
        patterns = [re.compile(self._pattern(marker)) for marker in markers]
        return any(pattern.fullmatch(name) for name in names_in_file for pattern in patterns)

    def match(self, name: str) -> tuple[Any, dict[str, str]] | None:
        """Returns the target and fields of the first pair that matches a name, or None."""
        for pattern, target in self._patterns:
            if found := pattern.fullmatch(name):
                return target, found.groupdict()
        return None

    def read(self, name: str, array: Any, num_heads: int | None = None) -> list[tuple[str, Any]]:
        """Converts a `LazyArray` to `[(canonical name, array in the Keras layout), ...]`.

        The result is empty for an ignored array.
        """
        target, fields = self.match(name) or (name, {})
        if target is IGNORED:
            return []
        if isinstance(target, Alias | Token):
            target = target.target
        size = array.shape[0] if array.shape else 0
        if isinstance(target, Stacked):
            if len(array.shape) < 2:
                return [(name, array)]
            layers = [layer.reshape(array.shape[1:]) for layer in array.split(size)]
            pairs = [(target.target.format(i=i, **fields), layer) for i, layer in enumerate(layers)]
        elif isinstance(target, Packed):
            if not size or size % len(target):
                return [(name, array)]
            parts = zip(target, array.split(len(target)))
            pairs = [(part.format(**fields), piece) for part, piece in parts if part]
        else:
            pairs = [(target.format(**fields) if fields else target, array)]
        if self.layout == "pytorch" and fields:
            pairs = [
                layouts.to_keras(path, fields.get("kind"), part, num_heads) for path, part in pairs
            ]
        return [(path, layouts.without_axes_of_one(path, part)) for path, part in pairs]

    def name_in_file(self, name: str) -> str:
        """Returns the name in a file for a canonical name."""
        for pattern, template in self._targets:
            if found := pattern.fullmatch(name):
                return template.format(**self._written, **found.groupdict())
        return name

    def write(
        self, arrays: Mapping[str, np.ndarray], num_layers: int, folder: Folder
    ) -> tuple[dict, dict]:
        """Returns `{name in the file: array}`, and `{canonical name: array}` for other arrays."""
        left = dict(arrays)
        tensors = {}
        fields = self._written | {"tower": folder.tower}
        for template, target in self.table:
            if isinstance(target, Alias | Ignored) or template in folder.omit:
                continue
            parts = target if isinstance(target, Packed) else [getattr(target, "target", target)]
            blocks = range(num_layers if "{i}" in template else 1)
            for i, (ending, kind) in itertools.product(blocks, _KINDS):
                found = [part.format(i=i) + ending for part in parts]
                if not all(name in left for name in found):
                    continue
                values = [layouts.to_pytorch(name, left.pop(name)) for name in found]
                if isinstance(target, Token):
                    values[0] = values[0].reshape(values[0].shape[3 - target.rank :])
                name = template.format(i=i, kind=kind, **fields)
                if kind and "{kind}" not in template:
                    name += f".{kind}"
                tensors[name] = np.ascontiguousarray(np.concatenate(values), np.float32)
        return tensors, left

    @property
    def _written(self):
        """The text of each field in written names."""
        return {field: values[0] for field, values in self.choices.items()}

    @functools.cached_property
    def _patterns(self):
        """`(compiled pattern of names in the file, target)` of each pair."""
        patterns = []
        for template, target in self.table:
            pattern = self._pattern(template)
            if self.layout == "pytorch" and "{kind}" not in template:
                pattern += r"(?:\.(?P<kind>weight|bias))?"
            patterns.append((re.compile(pattern), target))
        return patterns

    @functools.cached_property
    def _targets(self):
        """`(compiled pattern of canonical names, template of names in the file)` of each pair of
        templates."""
        pairs = [(target, template) for template, target in self.table if isinstance(target, str)]
        return [(re.compile(self._pattern(target)), template) for target, template in pairs]

    def _pattern(self, template):
        """Returns the regular expression for a template."""
        pattern = ""
        for index, part in enumerate(re.split(r"\{(\w+)\}", template)):
            if index % 2:
                choices = "|".join(map(re.escape, self.choices.get(part, ())))
                pattern += f"(?P<{part}>{choices or _FIELDS.get(part, '.*')})"
            else:
                pattern += re.escape(part)
        return pattern


def gelu_of(arguments: Mapping[str, Any]) -> str:
    """Returns the argument `mlp`, or the GELU that `exact_gelu` selects if `mlp` is None."""
    return arguments.get("mlp") or ("gelu" if arguments.get("exact_gelu") else "gelu_tanh")
