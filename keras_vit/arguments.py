"""Checks constructor arguments, and suggests names for misspelled ones."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Argument names of other libraries, and our names for them.
_OTHER_NAMES = {
    "num_classes": "classes",
    "img_size": "input_shape",
    "image_size": "input_shape",
    "in_chans": "input_shape",
    "embed_dim": "hidden_size",
    "pretrained": "weights",
    "drop_path_rate": "stochastic_depth",
    "drop_rate": "dropout",
    "layer_norm_eps": "epsilon",
}


def parameters_of(constructor: Callable) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a function or of a class's constructor by name, without
    `**kwargs`."""
    if not inspect.isclass(constructor):
        return _named(constructor)
    # A constructor with `**kwargs` passes them to the constructor of its base class.
    parameters: dict[str, inspect.Parameter] = {}
    for base in constructor.__mro__:
        own = vars(base).get("__init__")
        if base.__name__ == "ImageModel":  # its subclasses set the other arguments themselves
            for name in ("name", "dtype"):
                parameters.setdefault(name, _named(own)[name])
            return parameters
        if own is None:
            continue
        parameters = {**_named(own), **parameters}
        if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(own).parameters.values()):
            break
    return parameters


def _named(function):
    parameters = inspect.signature(function).parameters.items()
    return {
        name: value
        for name, value in parameters
        if name != "self" and value.kind is not value.VAR_KEYWORD
    }


def check_arguments(constructor: Callable, arguments: Mapping[str, Any]) -> None:
    """Raises a `TypeError` if a constructor does not accept an argument; suggests a valid name or
    lists all of them."""
    check_names(constructor.__name__, parameters_of(constructor), arguments)


def check_names(title: str, known: Iterable[str], arguments: Mapping[str, Any]) -> None:
    """Works like `check_arguments`, for a constructor named `title` that accepts the arguments
    `known`."""
    known = list(known)
    for name in arguments:
        if name not in known:
            near = _OTHER_NAMES.get(name) or "".join(difflib.get_close_matches(name, known, 1))
            hint = f"its arguments are {', '.join(known)}."
            if near in known:
                hint = f"did you mean `{near}`?"
            raise TypeError(
                f"`{title}` takes no argument `{name}`; {hint} Received: {name}={arguments[name]!r}"
            )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns " Did you mean NAME?" with the known name closest to a misspelled name, ignoring case
    and punctuation, or "" if none is close."""
    by_letters = {re.sub(r"\W|_", "", text).lower(): text for text in known}
    near = difflib.get_close_matches(re.sub(r"\W|_", "", name).lower(), by_letters, 1)
    return f" Did you mean {by_letters[near[0]]}?" if near else ""
