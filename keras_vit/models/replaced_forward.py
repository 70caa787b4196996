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
        model: the `VisionTransformer`, or None without a replacement.
        function: function of the model's images and `training` that returns its outputs, or None.
        score_changes: for each of the first blocks, an array that is added to its attention
            scores.
        embed: function of images and `training` that replaces `embed`, or None.
        add_positions: function of a layer number, from 1, and tokens that replaces
            `add_positions`, or None.
        embedded: list to which a `FeatureModel` appends the images that it passes to `embed`, or
            None.
    """

    model: keras.Model | None = None
    function: Callable | None = None
    score_changes: Sequence[Any] = ()
    embed: Callable | None = None
    add_positions: Callable | None = None
    embedded: list | None = None

    def score_change(self, number: int) -> Any:
        """Returns the array to add to the attention scores of layer `number`, from 1, or None."""
        return self.score_changes[number - 1] if number <= len(self.score_changes) else None


_INACTIVE = Replacement()


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


def replacement_of(model: keras.Model) -> Replacement:
    """Returns the innermost active replacement of a model's forward pass.

    Without one, its attributes are None.
    """
    return next((active for active in _ACTIVE.get() if active.model is model), _INACTIVE)
