"""What a checkpoint says about its model."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a file, the JSON files next to it and its dialect say about a model.

    An attribute is None if they do not say it.

    Attributes:
        num_heads, exact_gelu, epsilon, mlp, rotary, position_resampling: arguments of the model.
        grid: `(rows, columns)` of the position embeddings.
        image_size: the side or `[height, width]` of the images, in pixels; used only to find
            `grid`.
        class_row: whether the position embeddings always contain those of the class tokens.
        pool: timm's `global_pool`: "token", "avg", "map" or "".
        head_pool: the `pool` of files that have a head and do not state it.
        head_reads: what the head of the file reads, if no model supports such a head.
        preprocessing: fields of a `Preprocessing`.
        logits_activation: "softmax" or "sigmoid".
        constructor: name of the constructor that rebuilds the model.
        arguments: arguments of the constructor, as stored in the file.
    """

    num_heads: int | None = None
    exact_gelu: bool | None = None
    epsilon: float | None = None
    mlp: str | None = None
    rotary: Mapping[str, Any] | None = None
    position_resampling: str | None = None
    grid: tuple[int, int] | None = None
    image_size: int | list[int] | None = None
    class_row: bool | None = None
    pool: str | None = None
    head_pool: str | None = None
    head_reads: str | None = None
    preprocessing: Mapping[str, Any] | None = None
    logits_activation: str | None = None
    constructor: str | None = None
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def stated(self) -> dict[str, Any]:
        """Returns the facts that are known, by name."""
        return {name: value for name, value in vars(self).items() if value not in (None, {})}

    def over(self, other: "Facts") -> "Facts":
        """Returns these facts, completed by those of `other`."""
        return dataclasses.replace(other, **self.stated())
