"""Tests of the options of Transformer blocks, mostly against an implementation in NumPy."""

import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers.rotary import rotary_table, rotate

from ..numpy_reference import transformer_block, weights_of
from ..shared import randomize_around_unit_norms, to_numpy

BLOCK = {"num_heads": 2, "mlp_dim": 12}
# The tokens are a class token and 2 x 3 patches.
ROTARY = {"grid": (2, 3), "prefix": 1}
TOKENS = np.random.default_rng(1).standard_normal((2, 7, 16)).astype("float32")
OPTIONS = [
    {},
    {"mlp": "gelu", "attention_bias": "", "layer_scale": 0.1},
    {"mlp": "quick_gelu", "attention_bias": "qv", "qk_norm": True, "epsilon": 1e-2},
    {"mlp": "swiglu", "mlp_norm": True, "mlp_bias": False},
]


def _built_block(**options):
    block = layers.TransformerBlock(**BLOCK, **options)
    block.build(TOKENS.shape)
    return block


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_block_matches_numpy(options):
    block = randomize_around_unit_norms(_built_block(**options), 0.4)
    arguments = {name: options[name] for name in ("mlp", "epsilon") if name in options}
    expected = transformer_block(TOKENS.astype("float64"), weights_of(block), **arguments)
    np.testing.assert_allclose(to_numpy(block(TOKENS)), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("training", [False, True])
def test_block_can_return_only_the_first_token(training):
    options = {"rotary": ROTARY, "qk_norm": True, "layer_scale": 0.1}
    block = randomize_around_unit_norms(_built_block(**options), 0.4)
    first = _built_block(**options, first_token_only=True, remat=True)
    first.set_weights(block.get_weights())
    outputs = to_numpy(first(TOKENS, training=training))
    np.testing.assert_allclose(outputs, to_numpy(block(TOKENS))[:, :1], atol=2e-5)


@pytest.mark.one_backend
def test_attention_matches_its_scores():
    attention = layers.attention.MultiHeadAttention(2, qk_norm=True, rotary=ROTARY)
    attention.build(TOKENS.shape)
    randomize_around_unit_norms(attention, 0.4)
    scores = to_numpy(attention.scores_of(TOKENS))
    mixed = np.einsum("bhqn,bnhk->bqhk", scores, attention.value(TOKENS))
    expected = to_numpy(attention.out(mixed))
    np.testing.assert_allclose(to_numpy(attention(TOKENS)), expected, atol=2e-5)


@pytest.mark.one_backend
def test_queries_and_keys_are_normalized_before_they_are_rotated():
    attention = layers.attention.MultiHeadAttention(2, qk_norm=True, rotary=ROTARY)
    attention.build(TOKENS.shape)
    randomize_around_unit_norms(attention, 0.4)
    query, key = (
        rotate(norm(project(TOKENS)), *rotary_table(8, **ROTARY), "half")
        for norm, project in (
            (attention.query_norm, attention.query),
            (attention.key_norm, attention.key),
        )
    )
    expected = to_numpy(attention.scores(query, key))
    np.testing.assert_allclose(attention.scores_of(TOKENS), expected, atol=1e-6)


def test_config_of_an_earlier_version_means_the_defaults():
    config = layers.TransformerBlock(**BLOCK).get_config()
    added = ("remat", "mlp", "mlp_norm", "mlp_bias", "attention_bias", "qk_norm", "rotary")
    old_config = {name: value for name, value in config.items() if name not in added}
    assert layers.TransformerBlock.from_config(old_config).get_config() == config


def test_pooling_rejects_an_invalid_epsilon():
    with pytest.raises(ValueError, match="`epsilon` must be a number above 0"):
        layers.AttentionPooling(**BLOCK, epsilon=-1e-6)


@pytest.mark.one_backend
def test_compiled_block_takes_any_number_of_tokens():
    import tensorflow as tf

    block = layers.TransformerBlock(**BLOCK, attention_norm=True)
    block.build((None, None, 16))
    call = tf.function(block, input_signature=[tf.TensorSpec((None, None, 16))])
    np.testing.assert_allclose(call(TOKENS), block(TOKENS), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mlp": "relu"}, "`mlp` must be one of"),
        ({"epsilon": 0.0}, "`epsilon` must be a number above 0"),
        ({"attention_bias": "abc"}, "letters of"),
        ({"attention_bias": False}, "letters of"),
        ({"rotary": {"grid": (2, 2)}}, "require 4 tokens"),
    ],
    ids=str,
)
def test_rejects_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        _built_block(**options)
