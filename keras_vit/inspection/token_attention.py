"""What a single token attends to: that of a patch, or what the output reads."""

import numbers
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.attention_maps import rollout_step, token_row
from keras_vit.inspection.scores import as_images, iterate_scores


def token_attention(
    model: keras.Model,
    images: Any,
    patch: tuple[int, int] | None = None,
    layer: int = -1,
    head: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """How much one token takes from each patch: through all layers, and in one of them.

    Args:
        model, images: as of `attention_scores`.
        patch: whose token, `(row, column)`, counted from 0; None for what the output reads: the class token, or in
            models without one the mean over all patches.
        layer: the one layer, counted from 1; -1 for the last.
        head: the head of that layer, counted from 1; None for the mean over its heads.

    Returns:
        `(rollout, attention)`, float32 `(B, rows, columns)` each, 0 or more: `attention_rollout` with the residual
        connections, and the scores of the layer. Each sums to 1 over the patches and the class token, which is left
        out.

    Raises:
        ValueError: there is no Vision Transformer in the model, no such patch, layer or head, or the images are not of
            its size.
    """
    vit, images = as_images(model, images)
    layer, heads = vit.layer_number(layer, least=1), vit.num_heads
    is_head = isinstance(head, numbers.Integral) and not isinstance(head, bool) and 1 <= head <= heads
    if head is not None and not is_head:
        raise ValueError(f"`head` must be 1 to {heads}, or None for the mean. Received: head={head!r}")
    is_pair = isinstance(patch, Sequence) and len(patch) == 2 and all(isinstance(i, numbers.Integral) for i in patch)
    if patch is not None and not (is_pair and all(0 <= i < n for i, n in zip(patch, vit.grid))):
        raise ValueError(
            f"`patch` must be (row, column), below {vit.grid}, or None for the output. Received: patch={patch!r}"
        )
    rollout = attention = None
    for number, scores in iterate_scores(model, images):
        rollout = rollout_step(rollout, scores)
        if number == layer:
            attention = ops.mean(scores, axis=1) if head is None else scores[:, head - 1]
    row_of_all, row_of_one = (ops.convert_to_numpy(token_row(vit, m, patch)) for m in (rollout, attention))
    return row_of_all, row_of_one
