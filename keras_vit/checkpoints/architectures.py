"""Infers the architecture of a model: its family and the arguments that determine its outputs."""

from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.registry import FAMILIES, Family, find_sizes

# Arguments that identify an architecture. A load compares them if both models have a value, and
# `resnet_blocks` always.
STRUCTURE = (
    "patch_size",
    "hidden_size",
    "num_layers",
    "mlp_dim",
    "num_heads",
    "resnet_blocks",
    "depth",
    "width_factor",
    "version",
)
# Arguments for optional parts of a model. The arrays in a file show which parts it has. A model and
# a file must agree on all of them.
PARTS = (
    "num_registers",
    "layer_scale",
    "mlp_norm",
    "qk_norm",
    "pre_norm",
    "patch_bias",
    "attention_norm",
    "distilled",
)
# Arguments that change a model's outputs, in some cases without changing its arrays.
NUMERICS = (
    "exact_gelu",
    "epsilon",
    "mlp",
    "rotary",
    "position_embedding",
    "position_embedding_at",
    "pool_padding",
    "num_heads",
    # Of dense heads:
    "levels",
    "level_norm",
    "match_levels",
    "max_depth",
)
_NO_FACTS = Facts()


def infer(
    shapes: Mapping[str, tuple], facts: Facts = _NO_FACTS
) -> tuple[Family | None, dict[str, Any]]:
    """Infers a model's family and constructor arguments from shapes of weights and from facts."""
    for family in _candidates(facts):
        arguments = None if family.infer is None else family.infer(shapes, facts)
        if arguments is not None:
            return family, arguments
    return None, {}


def restore(shapes: Mapping[str, tuple], facts: Facts) -> tuple[Family | None, dict[str, Any]]:
    """Works like `infer`, but arguments stored in the file replace inferred ones.

    Arguments in `STRUCTURE` are not replaced. A family without `infer` is found by its stored
    constructor.
    """
    family, arguments = infer(shapes, facts)
    if family is not None:
        from_arrays = {name: arguments[name] for name in STRUCTURE if name in arguments}
        return family, {**arguments, **family.accepted(facts.arguments), **from_arrays}
    candidates = _candidates(facts)
    if facts.constructor and candidates and not any(family.infer for family in candidates):
        return candidates[0], candidates[0].accepted(facts.arguments)
    return None, {}


def _candidates(facts):
    """Returns the families that a file can have, the most recently added one first."""
    return [
        family
        for family in reversed(FAMILIES)
        if not facts.constructor or family.builds(facts.constructor)
    ]


def unknown_family_message(kind: str = "") -> str:
    """Returns the error message for a file of an unknown family.

    `kind` is the model type in its config.json.
    """
    known = dict.fromkeys(name.partition("-")[0] for family in FAMILIES for name in family.sizes)
    kind_note = f" (the model type in its config.json is {kind!r})" if kind else ""
    return (
        f"The file contains no weights of a known family{kind_note}; the known families are "
        f"{', '.join(known)}."
    )


def describe(family: Family | None, arguments: Mapping[str, Any]) -> str:
    """Describes an architecture for error messages."""
    if family is None:
        return "of an unknown family"
    names_shown = (*STRUCTURE, *PARTS, "mlp", "attention_bias")
    values = [f"{name}={arguments[name]}" for name in names_shown if arguments.get(name)]
    same_class = [other.sizes for other in FAMILIES if other.constructor is family.constructor]
    names = (name for name in find_sizes(arguments) if any(name in sizes for sizes in same_class))
    return f"{next(names, family.constructor.__name__)} ({', '.join(values)})"
