"""Attention scores of any layers."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.models.any_model import check_images, find_vision_transformer, images_into


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
    vit = find_vision_transformer(model)
    wanted = range(1, vit.num_layers + 1) if layers is None else np.atleast_1d(layers).tolist()
    chosen = [vit.layer_number(layer, least=1) for layer in wanted]
    scores: dict[int, Any] = dict.fromkeys(chosen)
    for number, values in iterate_scores(model, images, last=max(chosen)):
        if number in scores:
            values = ops.mean(values, axis=1) if reduce == "mean" else values
            scores[number] = ops.convert_to_numpy(values)
    is_single = layers is not None and np.ndim(layers) == 0
    return scores[chosen[0]] if is_single else np.stack([scores[number] for number in chosen])


def as_images(model, images):
    """The `VisionTransformer` inside a model, and images `(B, H, W, C)`, 1 or more, that fit the model."""
    vit = find_vision_transformer(model)
    images = images if hasattr(images, "dtype") else np.asarray(images)
    check_images(model, vit, images)
    if images.shape[0] == 0:
        raise ValueError(f"There must be an image. Received: images of shape {tuple(images.shape)}")
    return vit, images


def iterate_scores(model, images, last=None):
    """Yields `(layer, scores)` for each layer up to `last` in turn, `(B, heads, N, N)`, and keeps none of them."""
    vit, images = as_images(model, images)
    last = last or vit.num_layers
    tokens = vit.embed(images_into(model, vit, images))
    for number in range(1, last + 1):
        yield number, vit.attention_scores(number, tokens)
        if number < last:
            tokens = vit.run_block(number, tokens)
