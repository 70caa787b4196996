"""Checks of constructor arguments, shared by layers and models."""

import math
import numbers
from collections.abc import Sequence


def is_positive_int(value):
    """Returns whether `value` is an integer of 1 or more."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= 1


def check_positive_int(name, value):
    """Raises a `ValueError` unless `value` is an integer of 1 or more."""
    if not is_positive_int(value):
        raise ValueError(f"`{name}` must be an integer of 1 or more. Received: {name}={value!r}")


def check_positive_ints(name, values, rule, length=None):
    """Raises a `ValueError` unless `values` is a sequence of positive integers.

    If `length` is set, there must be as many of them. The error states the `rule`, such as "four
    positive integers".
    """
    is_sequence = isinstance(values, Sequence) and length in (None, len(values))
    if not is_sequence or not all(map(is_positive_int, values)):
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={values!r}")


def check_epsilon(epsilon):
    """Raises a `ValueError` unless `epsilon` is a number above 0."""
    if not isinstance(epsilon, numbers.Real) or not epsilon > 0:
        raise ValueError(f"`epsilon` must be a number above 0. Received: {epsilon=}")


def check_rate(name, value):
    """Raises a `ValueError` unless `value` is a dropout rate, in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be a number in [0, 1). Received: {name}={value!r}")


def check_choice(name, value, choices):
    """Raises a `ValueError` unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(str, choices))}. Received: {name}={value!r}"
        )


def nearest_multiples(side, stride):
    """Returns the positive multiples of `stride` nearest to a side, as text such as "16 and 24"."""
    below = side // stride * stride
    return f"{below} and {below + stride}" if below else f"{stride}"


def check_grid(grid):
    """Returns a valid grid as a tuple `(rows, columns)`; raises a `ValueError` for other values."""
    check_positive_ints("grid", grid, "(rows, columns), two positive integers", 2)
    return tuple(grid)


def check_grid_tokens(grid, tokens, max_class_tokens=0):
    """Raises a `ValueError` unless `tokens` is the number of patches in the grid.

    Up to `max_class_tokens` more tokens are valid too.
    """
    patches = math.prod(grid)
    if tokens not in range(patches, patches + max_class_tokens + 1):
        more = f", up to {max_class_tokens} more with class tokens" if max_class_tokens else ""
        raise ValueError(
            f"The grid requires {patches} tokens{more}. Received: tokens={tokens}, grid={grid}"
        )


def check_static_tokens(layer, shape, reason):
    """Raises a `ValueError` with the reason unless `shape` is `(B, N, D)` with a static N."""
    check_rank(layer, shape, "B, N, D")
    if shape[1] is None:
        raise ValueError(
            f"{layer} needs a static number of tokens, because {reason}. Received: "
            f"shape={tuple(shape)}"
        )


def check_rank(layer, shape, axes):
    """Raises a `ValueError` unless `shape` has as many axes as the text `axes`, as in "B, N, D"."""
    if len(shape) != len(axes.split(",")):
        raise ValueError(f"{layer} needs inputs of shape ({axes}). Received: shape={tuple(shape)}")
