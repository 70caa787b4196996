"""Tests of the position embeddings in appendix D.4 of the ViT paper against NumPy."""

import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import attention_scores

from ..numpy_reference import (
    dense,
    layer_norm,
    prepend,
    to_patches,
    transformer_block,
    weights_of,
)
from ..shared import SIZES, random_images, randomize_around_unit_norms, to_numpy

# The grid has 2 x 3 patches.
MODEL = {**SIZES, "input_shape": (8, 12, 3), "num_layers": 3, "classes": 3}
IMAGES = random_images((2, 8, 12, 3), seed=1)
RELATIVE = {"position_embedding": "relative"}
EVERY_LAYER = {"position_embedding_at": "every_layer"}
LEARNED_2D = {"position_embedding": "learned2d"}
LEARNED_2D_SHARED = {**LEARNED_2D, "position_embedding_at": "every_layer_shared"}
ON_ONE_BACKEND = [
    {"position_embedding": "none"},
    EVERY_LAYER,
    {**LEARNED_2D, **EVERY_LAYER, "classifier": "gap"},
]


def build(**arguments):
    model = keras_vit.VisionTransformer(**{**MODEL, **arguments})
    return randomize_around_unit_norms(model, 0.3)


def positions_in_numpy(weights, name):
    """Returns the embeddings of the tokens' positions, or 0 if the model has no layer `name`."""
    if f"{name}/pos_embedding" in weights:
        return weights[f"{name}/pos_embedding"][0]
    if f"{name}/x_embedding" not in weights:
        return 0.0
    x = weights[f"{name}/x_embedding"][0]
    y = weights[f"{name}/y_embedding"][0]
    # The three columns of each row follow one another.
    positions = np.concatenate([np.tile(x, (2, 1)), np.repeat(y, 3, axis=0)], axis=1)
    if f"{name}/class_embedding" in weights:
        positions = np.concatenate([weights[f"{name}/class_embedding"][0], positions])
    return positions


def logits_in_numpy(model, positions_at):
    """Computes the logits of `IMAGES`. `positions_at` is the argument `position_embedding_at`."""
    weights = weights_of(model)
    x = dense(to_patches(IMAGES.astype("float64"), 4), weights, "embedding")
    if "class_token/cls" in weights:
        x = prepend(weights["class_token/cls"], x)
    for i in range(3):
        if i == 0 or positions_at == "every_layer_shared":
            x = x + positions_in_numpy(weights, "position_embedding")
        elif positions_at == "every_layer":
            x = x + positions_in_numpy(weights, f"position_embedding_{i}")
        x = transformer_block(x, weights_of(model.get_layer(f"encoderblock_{i}")))
    x = layer_norm(x, weights, "encoder_norm")
    pooled = x[:, 0] if "class_token/cls" in weights else x.mean(1)
    return dense(pooled, weights, "head")


@pytest.mark.parametrize(
    "arguments",
    [
        RELATIVE,
        LEARNED_2D_SHARED,
        *(pytest.param(arguments, marks=pytest.mark.one_backend) for arguments in ON_ONE_BACKEND),
    ],
    ids=str,
)
def test_logits_match_numpy(arguments):
    model = build(**arguments)
    expected = logits_in_numpy(model, arguments.get("position_embedding_at", "stem"))
    np.testing.assert_allclose(to_numpy(model(IMAGES)), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "position_layer"),
    [
        (RELATIVE, None),
        (EVERY_LAYER, "position_embedding_2"),
        (LEARNED_2D_SHARED, "position_embedding"),
    ],
    ids=str,
)
def test_features_and_attention_scores_match_the_last_block(arguments, position_layer):
    model = build(**arguments)
    features = keras_vit.features(model, IMAGES)
    np.testing.assert_allclose(model.head(features), model(IMAGES), atol=1e-5)
    scores = attention_scores(model, IMAGES)
    assert scores.shape == (3, 2, 2, 7, 7)
    tokens = keras_vit.features(model, IMAGES, layers=2, tokens="all", norm=False)
    if position_layer:
        tokens = model.get_layer(position_layer)(tokens)
    block = model.get_layer("encoderblock_2")
    x = block.norm_1(tokens)
    expected = block.attention.scores(block.attention.query(x), block.attention.key(x))
    np.testing.assert_allclose(scores[2], to_numpy(expected), atol=1e-5)
