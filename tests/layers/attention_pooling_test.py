"""Tests of attention pooling, which attends to all tokens with one learned query."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import randomize


def numpy_pooling(layer, tokens):
    """Computes attention pooling with NumPy in float64."""
    w = {v.path.rpartition("pooling/")[2]: np.asarray(v, "float64") for v in layer.weights}
    a = "attention/"

    def project(x, name):
        return np.einsum("bnd,dhk->bnhk", x, w[f"{a}{name}/kernel"]) + w[f"{a}{name}/bias"]

    probe = np.repeat(w["probe"], len(tokens), axis=0)
    query = project(probe, "query")
    key = project(tokens, "key")
    value = project(tokens, "value")
    scores = np.einsum("bqhk,bnhk->bhqn", query, key) / np.sqrt(query.shape[-1])
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    x = np.einsum("bhqn,bnhk->bqhk", scores, value)
    x = np.einsum("bqhk,hkd->bqd", x, w[f"{a}out/kernel"]) + w[f"{a}out/bias"]
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * w[
        "norm/gamma"
    ] + w["norm/beta"]
    y = y @ w["mlp_1/kernel"] + w["mlp_1/bias"]
    y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    return (x + y @ w["mlp_2/kernel"] + w["mlp_2/bias"])[:, 0]


def test_attention_pooling_matches_numpy():
    layer = keras_vit.AttentionPooling(2, 12, name="pooling")
    layer.build((None, 5, 8))
    randomize(layer)
    tokens = np.random.default_rng(1).standard_normal((3, 5, 8)).astype("float32")
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer(tokens)), numpy_pooling(layer, tokens), atol=1e-4
    )


def test_pooling_does_not_depend_on_token_order():
    layer = keras_vit.AttentionPooling(2, 12)
    tokens = np.random.default_rng(0).standard_normal((3, 5, 8)).astype("float32")
    one = layer(tokens)
    other = layer(tokens[:, ::-1].copy())
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other), atol=1e-5
    )


def test_rejects_tokens_of_wrong_rank():
    with pytest.raises(ValueError, match=r"AttentionPooling needs inputs of shape \(B, N, D\)"):
        keras_vit.AttentionPooling(2, 12)(np.zeros((2, 8)))
