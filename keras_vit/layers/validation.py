"""Checks of constructor arguments that several layers and models share."""


def check_positive_int(name, value):
    """Raises a `ValueError` unless `value` is an integer of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"`{name}` must be an integer of 1 or more. Received: {name}={value!r}")


def check_rate(name, value):
    """Raises a `ValueError` unless `value` is a dropout rate, in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be a number in [0, 1). Received: {name}={value!r}")


def check_grid(grid):
    """The grid as a tuple `(rows, columns)`.

    Raises:
        ValueError: it is not a pair of positive integers.
    """
    if not isinstance(grid, list | tuple) or len(grid) != 2:
        raise ValueError(f"`grid` must be (rows, columns). Received: grid={grid!r}")
    for side in grid:
        check_positive_int("grid", side)
    return tuple(grid)


def check_rank(layer, shape, axes):
    """Raises a `ValueError` unless `shape` has as many axes as the string `axes` names, such as "B, N, D"."""
    if len(shape) != len(axes.split(",")):
        raise ValueError(
            f"{layer} needs inputs of shape ({axes}), rank {len(axes.split(','))}. Received: shape={tuple(shape)}"
        )
