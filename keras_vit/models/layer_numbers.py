"""Layer numbers as in the paper: layer 1 is the first block, and layer 0 is its input."""

import numbers
from collections.abc import Sequence

import numpy as np


def layer_number(vit, layer, first=0, argument="layer"):
    """Converts a layer number to one from `first` to `num_layers`.

    A negative number counts from the end. `argument` is the name of `layer` in the error message.
    """
    last = vit.num_layers
    first_negative = first - last - 1
    is_integer = isinstance(layer, numbers.Integral) and not isinstance(layer, bool)
    if not is_integer or not (first <= layer <= last or first_negative <= layer <= -1):
        raise ValueError(
            f"The layers of {vit.name!r} are {first} to {last}, where 1 is the first block, or "
            f"{first_negative} to -1 from the end. Received: {argument}={layer!r}"
        )
    return int(layer) if layer >= 0 else int(layer) + last + 1


def layer_numbers(vit, layers, first=0):
    """Returns the `layer_number` of each layer, and whether `layers` is a single number."""
    is_single = not isinstance(layers, Sequence | np.ndarray)
    found = [layer_number(vit, layer, first) for layer in ([layers] if is_single else layers)]
    if not found:
        raise ValueError(f"`layers` must contain at least one layer number. Received: {layers=}")
    return found, is_single
