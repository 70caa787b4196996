"""Tests that the fast implementations of attention match the plain one."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import attention

from ..shared import to_numpy

ON_JAX = keras.backend.backend() == "jax"
TOKENS = np.random.default_rng(0).normal(size=(3, 11, 8)).astype("float32")


def _gradients_on_jax(layer, tokens, arguments):
    import jax

    trainable = [variable.value for variable in layer.trainable_variables]
    others = [variable.value for variable in layer.non_trainable_variables]

    def loss(weights, tokens):
        outputs, _ = layer.stateless_call(weights, others, tokens, **arguments, training=True)
        return ops.sum(ops.square(outputs))

    return jax.tree.leaves(jax.grad(loss, argnums=(0, 1))(trainable, ops.convert_to_tensor(tokens)))


def _gradients_on_tensorflow(layer, tokens, arguments):
    import tensorflow as tf

    tokens = tf.constant(tokens)
    with tf.GradientTape() as tape:
        tape.watch(tokens)
        loss = tf.reduce_sum(layer(tokens, **arguments, training=True) ** 2)
    weights = [variable.value for variable in layer.trainable_variables]
    return tape.gradient(loss, [*weights, tokens])


def _outputs_and_gradients(layer, arguments):
    """Returns the outputs for `TOKENS`, and the gradients of the sum of their squares."""
    outputs = layer(TOKENS, **arguments, training=True)
    gradients = _gradients_on_jax if ON_JAX else _gradients_on_tensorflow
    return [to_numpy(x) for x in (outputs, *gradients(layer, TOKENS, arguments))]


@pytest.mark.parametrize("num_queries", [None, 7])
def test_chunked_attention_matches_full_attention(num_queries, monkeypatch):
    layer = attention.MultiHeadAttention(num_heads=2)
    layer.build((None, 11, 8))
    arguments = {}
    if num_queries:
        arguments["queries"] = ops.convert_to_tensor(TOKENS[:, :num_queries])
    expected = _outputs_and_gradients(layer, arguments)
    chunk_lengths = set()
    attend = layer._attend

    def recording_attend(query, *others, **options):
        chunk_lengths.add(query.shape[1])
        return attend(query, *others, **options)

    monkeypatch.setattr(attention, "LONG_SEQUENCE", 6)
    monkeypatch.setattr(attention, "CHUNK", 4)
    monkeypatch.setattr(layer, "_attend", recording_attend)
    for ours, theirs in zip(_outputs_and_gradients(layer, arguments), expected, strict=True):
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
        calls.append("dot_product_attention")
        return keras_attention(*arrays, **options)

    monkeypatch.setattr(attention, "runs_on_gpu", lambda: True)
    monkeypatch.setattr(ops, "dot_product_attention", recording_attention)
    outputs = to_numpy(layer(TOKENS))
    is_fused = ON_JAX and dtype == "mixed_bfloat16"
    assert len(calls) == int(is_fused)
    if is_fused:
        np.testing.assert_allclose(outputs, expected, rtol=0.02, atol=0.01)
    else:
        np.testing.assert_array_equal(outputs, expected)
    # Training is never fused, because cuDNN would draw other dropout masks.
    calls.clear()
    layer(TOKENS, training=True)
    assert not calls
