"""Rotary position embeddings (RoPE) for patch grids."""

import numpy as np
from keras import ops

from keras_vit.layers.validation import check_choice, check_grid


def rotary_table(
    head_size,
    *,
    grid,
    prefix=0,
    style="half",
    coordinates="centered",
    theta=100.0,
    order="yx",
    reference=None,
    offset=0.0,
):
    """Returns the cosines and sines that rotate queries and keys.

    Both are float32 arrays of shape `(prefix + rows*columns, head_size)`.

    Frequency k is `theta ** (-k / (head_size/4))`. Each frequency is used twice, for the row and
    for the column.

    Args:
        head_size: a multiple of 4.
        grid: `(rows, columns)` of the patches.
        prefix: number of tokens before the patches; these tokens are not rotated.
        style: "half" pairs value i with value `i + head_size/2`; "pairs" pairs neighboring values.
        coordinates: "centered" scales patch centers to [-1, 1] and multiplies them by 2 pi; "index"
            counts patches from 0.
        theta: base of the frequencies, above 0.
        order: "yx" to put the frequencies of the row first, "xy" to put the frequencies of the
            column first.
        reference: with "index", the side of the grid to which the coordinates are rescaled; None
            for no rescaling.
        offset: with "index", number added to the coordinates before rescaling.

    Reference: DINOv3's `rope_position_encoding.py`; timm's `pos_embed_sincos.py`.
    """
    rows, columns = check_grid(grid)
    check_choice("style", style, ("half", "pairs"))
    check_choice("coordinates", coordinates, ("centered", "index"))
    check_choice("order", order, ("yx", "xy"))
    if head_size % 4:
        raise ValueError(f"`head_size` must be a multiple of 4. Received: {head_size=}")
    if not theta > 0:
        raise ValueError(f"`theta` must be above 0. Received: {theta=}")
    if coordinates == "centered" and (reference is not None or offset):
        raise ValueError(
            "`reference` and `offset` require coordinates='index'. "
            f"Received: reference={reference}, offset={offset}"
        )
    num_frequencies = head_size // 4
    frequencies = theta ** (-np.arange(num_frequencies) / num_frequencies)

    def angles(side):
        """Returns the angles along an axis of this length, `(side, head_size/4)`."""
        if coordinates == "centered":
            positions = 2 * np.pi * (2 * (np.arange(side) + 0.5) / side - 1)
        else:
            positions = (np.arange(side) + offset) * (1 if reference is None else reference / side)
        return positions[:, None] * frequencies

    y = np.repeat(angles(rows), columns, axis=0)
    x = np.tile(angles(columns), (rows, 1))
    table = np.concatenate([y, x] if order == "yx" else [x, y], axis=-1)
    table = np.tile(table, 2) if style == "half" else np.repeat(table, 2, axis=-1)
    table = np.concatenate([np.zeros((prefix, head_size)), table])
    return np.cos(table).astype("float32"), np.sin(table).astype("float32")


def rotate(x, cosines, sines, style):
    """Rotates queries or keys of the first M tokens, `(B, M, heads, head_size)`, in float32."""
    dtype = x.dtype
    shape = x.shape
    x = ops.cast(x, "float32")
    if style == "half":
        first, second = ops.split(x, 2, axis=-1)
        turned = ops.concatenate([-second, first], axis=-1)
    else:
        pairs = ops.reshape(x, (-1, *shape[1:3], shape[3] // 2, 2))
        turned = ops.reshape(ops.stack([-pairs[..., 1], pairs[..., 0]], axis=-1), (-1, *shape[1:]))
    count = shape[1]
    return ops.cast(x * cosines[:count, None] + turned * sines[:count, None], dtype)
