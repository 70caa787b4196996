"""Replaces the forward pass of a Vision Transformer, even if another model contains it."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

_ACTIVE: contextvars.ContextVar = contextvars.ContextVar("replaced_forward", default=())


@dataclasses.dataclass(frozen=True)
class Replacement:
    """The forward pass that replaces a model's own.

    Attributes:
        model: the `VisionTransformer`.
        function: function of the model's images and `training` that returns its outputs.
        score_changes: for each of the first blocks, an array that is added to its attention
            scores.
        embed: function of images and `training` that replaces `embed`, or None.
        add_positions: function of a layer number, from 1, and tokens that replaces
            `add_positions`, or None.
        embedded: list to which a `FeatureModel` appends the images that it passes to `embed`, or
            None.
    """

    model: keras.Model
    function: Callable
    score_changes: Sequence[Any] = ()
    embed: Callable | None = None
    add_positions: Callable | None = None
    embedded: list | None = None

    def score_change(self, number: int) -> Any:
        """Returns the array to add to the attention scores of layer `number`, from 1, or None."""
        return self.score_changes[number - 1] if number <= len(self.score_changes) else None


@contextlib.contextmanager
def replaced_forward(model: keras.Model, function: Callable, **parts: Any) -> Iterator[Replacement]:
    """Replaces a model's forward pass with `function(images, training)` in this thread.

    `parts` are further attributes of the `Replacement`.
    """
    replacement = Replacement(model, function, **parts)
    token = _ACTIVE.set((replacement, *_ACTIVE.get()))
    try:
        yield replacement
    finally:
        _ACTIVE.reset(token)


def replacement_of(model: keras.Model) -> Replacement | None:
    """Returns the innermost active replacement of a model's forward pass, or None."""
    return next((replacement for replacement in _ACTIVE.get() if replacement.model is model), None)
