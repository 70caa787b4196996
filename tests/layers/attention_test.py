"""Tests that the fast implementations of attention match the plain one."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import attention

from ..shared import to_numpy, value_and_gradients

ON_JAX = keras.backend.backend() == "jax"
TOKENS = np.random.default_rng(0).normal(size=(3, 11, 8)).astype("float32")


def _outputs_and_gradients(layer, inputs):
    """Returns the outputs, the sum of their squares, and its gradients for the inputs."""
    loss, gradients = value_and_gradients(
        lambda *inputs: ops.sum(ops.square(layer(*inputs, training=True))), inputs
    )
    return [to_numpy(x) for x in (layer(*inputs), loss, *gradients)]


@pytest.mark.parametrize("num_queries", [None, 7])
def test_chunked_attention_matches_full_attention(num_queries, monkeypatch):
    layer = attention.MultiHeadAttention(num_heads=2)
    layer.build((None, 11, 8))
    inputs = [TOKENS] if num_queries is None else [TOKENS, TOKENS[:, :num_queries]]
    expected = _outputs_and_gradients(layer, inputs)
    chunk_lengths = set()
    attend = layer._attend

    def recording_attend(query, *others, **options):
        chunk_lengths.add(query.shape[1])
        return attend(query, *others, **options)

    monkeypatch.setattr(attention, "LONG_SEQUENCE", 6)
    monkeypatch.setattr(attention, "CHUNK", 4)
    monkeypatch.setattr(layer, "_attend", recording_attend)
    for ours, theirs in zip(_outputs_and_gradients(layer, inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-5)
    # JAX pads the queries to chunks of 4. TensorFlow does not split them.
    assert chunk_lengths == ({4} if ON_JAX else {num_queries or 11})


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float32"])
def test_half_precision_on_jax_gpus_uses_keras_attention(dtype, monkeypatch):
    layer = attention.MultiHeadAttention(num_heads=2, dropout=0.1, dtype=dtype)
    layer.build((None, 11, 8))
    expected = to_numpy(layer(TOKENS))
    calls = []
    keras_attention = ops.dot_product_attention

    def recording_attention(*arrays, **options):
        calls.append(options)
        return keras_attention(*arrays, **options)

    monkeypatch.setattr(attention, "runs_on_gpu", lambda: True)
    monkeypatch.setattr(ops, "dot_product_attention", recording_attention)
    outputs = to_numpy(layer(TOKENS))
    assert len(calls) == (ON_JAX and dtype == "mixed_bfloat16")
    np.testing.assert_allclose(outputs, expected, rtol=0.02, atol=0.01)
    # Training with dropout is not fused, because cuDNN would draw other masks.
    calls.clear()
    layer(TOKENS, training=True)
    assert not calls
