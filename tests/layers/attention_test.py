import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import attention


@pytest.mark.parametrize("queries", [None, 7])
def test_chunked_attention_matches_full_attention(queries, monkeypatch):
    layer = attention.MultiHeadAttention(num_heads=2)
    layer.build((None, 11, 8))
    tokens = np.random.default_rng(0).normal(size=(3, 11, 8)).astype("float32")
    arguments = {} if queries is None else {"queries": ops.convert_to_tensor(tokens[:, :queries])}

    def outputs():
        return ops.convert_to_numpy(layer(tokens, **arguments, training=True))

    whole = outputs(), _gradients(layer, tokens, arguments)
    monkeypatch.setattr(attention, "LONG_SEQUENCE", 6)
    monkeypatch.setattr(attention, "CHUNK", 4)
    calls = []
    attend = layer._attend
    monkeypatch.setattr(
        layer,
        "_attend",
        lambda q, *rest, **real: calls.append(q.shape[1]) or attend(q, *rest, **real),
    )
    np.testing.assert_allclose(outputs(), whole[0], atol=1e-6)
    # On JAX, 11 queries are split into three chunks of 4, and 7 queries into two.
    assert set(calls) == ({4} if keras.backend.backend() == "jax" else {queries or 11})
    for ours, theirs in zip(_gradients(layer, tokens, arguments), whole[1]):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float32"])
def test_half_precision_on_jax_gpus_uses_keras_attention(dtype, monkeypatch):
    layer = attention.MultiHeadAttention(num_heads=2, dropout=0.1, dtype=dtype)
    layer.build((None, 11, 8))
    tokens = np.random.default_rng(0).normal(size=(3, 11, 8)).astype("float32")
    whole = ops.convert_to_numpy(ops.cast(layer(tokens), "float32"))
    calls = []
    attend = ops.dot_product_attention
    monkeypatch.setattr(attention, "runs_on_gpu", lambda: True)
    monkeypatch.setattr(
        ops,
        "dot_product_attention",
        lambda *arrays, **mask: calls.append(1) or attend(*arrays, **mask),
    )
    fused = ops.convert_to_numpy(ops.cast(layer(tokens), "float32"))
    assert len(calls) == (keras.backend.backend() == "jax" and dtype == "mixed_bfloat16")
    np.testing.assert_allclose(fused, whole, atol=0.01 if calls else 0, rtol=0.02 if calls else 0)
    # Training is not fused, because cuDNN would draw other dropout masks.
    layer(tokens, training=True)
    assert len(calls) <= 1


def _gradients(layer, tokens, arguments):
    if keras.backend.backend() == "jax":
        import jax

        others = [variable.value for variable in layer.non_trainable_variables]

        def loss(weights, tokens):
            outputs, _ = layer.stateless_call(weights, others, tokens, **arguments, training=True)
            return ops.sum(ops.square(outputs))

        weights = [variable.value for variable in layer.trainable_variables]
        return jax.tree.leaves(
            jax.grad(loss, argnums=(0, 1))(weights, ops.convert_to_tensor(tokens))
        )
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tokens = tf.constant(tokens)
        tape.watch(tokens)
        loss = tf.reduce_sum(layer(tokens, **arguments, training=True) ** 2)
    return [
        g.numpy()
        for g in tape.gradient(loss, [*(v.value for v in layer.trainable_variables), tokens])
    ]
