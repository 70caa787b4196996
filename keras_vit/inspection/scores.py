"""Computes the attention scores of selected layers."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.layers.validation import check_choice
from keras_vit.models.any_model import check_images, find_vision_transformer, images_into
from keras_vit.models.layer_numbers import layer_numbers


def attention_scores(
    model: keras.Model,
    images: np.ndarray,
    layers: int | Sequence[int] | None = None,
    reduce: str = "none",
) -> np.ndarray:
    """Computes the attention scores of every token to every token, after the softmax.

    Args:
        model: a `keras.Model` that is or contains a Vision Transformer.
        images: `(B, H, W, C)`, preprocessed for the model.
        layers: a layer (1 is the first block, -1 the last), a list of layers, or None for all
            layers.
        reduce: "none", or "mean" for the mean over heads.

    Returns: float32 `(L, B, heads, N, N)`, with one row per query and one column per key. Prefix
        tokens come first. If `layers` is an integer, the axis L is absent. If `reduce` is "mean",
        the heads axis is absent. Rows sum to 1, even in mixed precision. The last block has all
        rows, even if the model itself computes only the first row.

    Raises:
        ValueError: the model does not contain exactly one Vision Transformer, `layers` is empty or
            has an unknown layer, the images are empty or have the wrong shape or dtype, or `reduce`
            is unknown.
    """
    check_choice("reduce", reduce, ("none", "mean"))
    vit = find_vision_transformer(model)
    layers = range(1, vit.num_layers + 1) if layers is None else layers
    chosen, is_single = layer_numbers(vit, layers, first=1)
    scores = {}
    for number, values in iterate_scores(model, images, last=max(chosen)):
        if number in chosen:
            values = ops.mean(values, axis=1) if reduce == "mean" else values
            scores[number] = ops.convert_to_numpy(values)
    return scores[chosen[0]] if is_single else np.stack([scores[number] for number in chosen])


def check_inputs(model, images):
    """Returns a model's `VisionTransformer`, and the images as an array, after checking both."""
    vit = find_vision_transformer(model)
    images = images if hasattr(images, "dtype") else np.asarray(images)
    check_images(model, vit, images)
    if images.shape[0] == 0:
        raise ValueError(
            "`images` must contain at least one image. Received: images of shape "
            f"{tuple(images.shape)}"
        )
    return vit, images


def iterate_scores(model, images, last=None):
    """Yields `(layer, scores)` with scores `(B, heads, N, N)` for each layer up to `last`, one
    layer at a time."""
    vit, images = check_inputs(model, images)
    last = last or vit.num_layers
    tokens = vit.embed(images_into(model, vit, images))
    for number in range(1, last + 1):
        yield number, vit.attention_scores(number, tokens)
        if number < last:
            tokens = vit.run_block(number, tokens)
