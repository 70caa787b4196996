"""Checks of constructor arguments, shared by layers and models."""

import math
import numbers


def check_positive_int(name, value):
    """Raises a `ValueError` unless `value` is an integer of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"`{name}` must be an integer of 1 or more. Received: {name}={value!r}")


def check_rate(name, value):
    """Raises a `ValueError` unless `value` is a dropout rate, in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
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
    if not isinstance(grid, list | tuple) or len(grid) != 2:
        raise ValueError(f"`grid` must be (rows, columns). Received: grid={grid!r}")
    for side in grid:
        check_positive_int("grid", side)
    return tuple(grid)


def check_grid_tokens(grid, tokens, class_token=True):
    """Raises a `ValueError` unless `tokens` is the number of patches in the grid.

    With `class_token`, 1 or 2 more tokens are valid too.
    """
    patches = math.prod(grid)
    if tokens not in range(patches, patches + (3 if class_token else 1)):
        more = ", 1 or 2 more with class tokens" if class_token else ""
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
