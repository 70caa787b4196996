"""Attention scores of any layers."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.models.encoder import Encoder


def attention_scores(
    model: keras.Model, images: np.ndarray, layers: int | Sequence[int] | None = None, reduce: str = "none"
) -> np.ndarray:
    """What every token takes from every other one, after the softmax.

    Args:
        model: a `keras.Model` with a Vision Transformer in it, also wrapped inside other models.
        images: `(B, H, W, C)`, as the model takes them.
        layers: a number, counted from 1 for the first block, -1 for the last; a list of numbers; None for all layers.
        reduce: "none", or "mean" over the heads.

    Returns:
        float32 `(L, B, heads, N, N)`, from query to key, the class token first if there is one; rows sum to 1, also
        of models in mixed precision, and in the last block too, where the model itself needs the class token's row
        alone. Without the axis L for a number, and without heads for the mean.

    Raises:
        ValueError: there is no Vision Transformer in the model, no such layer, or the images are not of its size.
    """
    if reduce not in ("none", "mean"):
        raise ValueError(f"`reduce` must be 'none' or 'mean'. Received: reduce={reduce!r}")
    encoder = Encoder(model)
    if layers is None:
        layers = range(1, len(encoder.blocks) + 1)
    is_single = not isinstance(layers, Sequence | np.ndarray)
    wanted_layers: list[Any] = list(layers) if isinstance(layers, Sequence | np.ndarray) else [layers]
    chosen = [encoder.layer_number(layer, least=1) for layer in wanted_layers]
    if not chosen:
        raise ValueError("`layers` must name a layer. Received: layers=[]")
    scores: dict[int, Any] = dict.fromkeys(chosen)
    for number, values in iterate_scores(encoder, images, last=max(chosen)):
        if number in scores:
            values = ops.mean(values, axis=1) if reduce == "mean" else values
            scores[number] = ops.convert_to_numpy(values)
    return scores[chosen[0]] if is_single else np.stack([scores[number] for number in chosen])


def iterate_scores(encoder, images, last=None):
    """Yields `(layer, scores)` for each layer in turn, tensors `(B, heads, N, N)`, and keeps none of them.

    Args:
        encoder: a `models.encoder.Encoder`.
        images: `(B, H, W, C)`.
        last: the last layer; None for the last one that there is.
    """
    images = images if hasattr(images, "dtype") else np.asarray(images)
    encoder.check_images(images)
    last = last or len(encoder.blocks)
    tokens = encoder.embed(images)
    for number in range(1, last + 1):
        block = encoder.blocks[number - 1]
        x = block.norm_1(encoder.with_positions(number, tokens))
        attention = block.attention
        yield number, attention.scores(attention.query(x), attention.key(x), dtype="float32")
        if number < last:
            tokens = encoder.block(number, tokens)
