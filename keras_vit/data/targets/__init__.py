"""Target kinds: what a task learns from, such as classes.

A target kind is a subclass of `Target` in a file of this folder and a line in `TARGETS`. A task
names the kind that it learns from (`Task.target`). The fields of `config.data` that a kind owns
become fields of `Options`.
"""

from typing import Any

from keras_vit.data.targets.classes import Classes
from keras_vit.data.targets.depth import Depth
from keras_vit.data.targets.masks import Masks
from keras_vit.data.targets.none import NoTarget
from keras_vit.data.targets.target import Target
from keras_vit.data.targets.texts import Texts

TARGETS: dict[str, type[Target]] = {
    "classes": Classes,
    "none": NoTarget,
    "masks": Masks,
    "depth": Depth,
    "texts": Texts,
}
"""Maps the value of `Task.target` to a target kind."""

DEFAULTS: dict[str, Any] = {
    name: value for kind in TARGETS.values() for name, value in kind.defaults.items()
}


def get(name: str) -> type[Target]:
    """Returns the target kind `name`, a key of `TARGETS`.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in TARGETS:
        raise ValueError(f"`target` must be one of {', '.join(TARGETS)}. Received: target={name!r}")
    return TARGETS[name]
