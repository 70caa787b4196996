"""Layer numbers as in the paper: layer 1 is the first block, and layer 0 is its input."""

import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from keras_vit.models.vision_transformer import VisionTransformer


def layer_number(vit: "VisionTransformer", layer: int, first: int = 0) -> int:
    """Converts a layer number to one from `first` to `num_layers`.

    A negative number counts from the end.
    """
    last = vit.num_layers
    first_negative = first - last - 1
    is_integer = isinstance(layer, numbers.Integral) and not isinstance(layer, bool)
    if not is_integer or not (first <= layer <= last or first_negative <= layer <= -1):
        raise ValueError(
            f"The layers of {vit.name!r} are {first} to {last}, where 1 is the first block, or "
            f"{first_negative} to -1 from the end. Received: layer={layer!r}"
        )
    return int(layer) if layer >= 0 else int(layer) + last + 1


def layer_numbers(
    vit: "VisionTransformer", layers: int | Sequence[int], first: int = 0
) -> tuple[list[int], bool]:
    """Returns the `layer_number` of each layer, and whether `layers` is a single number."""
    is_single = not isinstance(layers, Sequence | np.ndarray)
    numbers_given: Any = [layers] if is_single else layers
    found = [layer_number(vit, layer, first) for layer in numbers_given]
    if not found:
        raise ValueError("`layers` must contain at least one layer number. Received: layers=[]")
    return found, is_single
