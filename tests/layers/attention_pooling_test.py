"""Tests of attention pooling, which attends to all tokens with one learned query."""

import numpy as np

import keras_vit

from ..numpy_reference import (
    ACTIVATIONS,
    attend,
    dense,
    layer_norm,
    project_to_heads,
    weights_of,
)
from ..shared import randomize, to_numpy


def pool_in_numpy(layer, tokens):
    """Computes attention pooling with NumPy in float64."""
    weights = weights_of(layer)
    probe = np.repeat(weights["probe"], len(tokens), axis=0)
    x = attend(
        project_to_heads(probe, weights, "attention/query"),
        project_to_heads(tokens, weights, "attention/key"),
        project_to_heads(tokens, weights, "attention/value"),
        weights,
    )
    hidden = ACTIVATIONS["gelu_tanh"](dense(layer_norm(x, weights, "norm"), weights, "mlp_1"))
    return (x + dense(hidden, weights, "mlp_2"))[:, 0]


def test_attention_pooling_matches_numpy():
    layer = keras_vit.AttentionPooling(2, 12)
    layer.build((None, 5, 8))
    randomize(layer)
    tokens = np.random.default_rng(1).standard_normal((3, 5, 8)).astype("float32")
    np.testing.assert_allclose(to_numpy(layer(tokens)), pool_in_numpy(layer, tokens), atol=1e-4)
