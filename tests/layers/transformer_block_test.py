"""Tests of the initial weights, dtypes, dropout and masks of the Transformer block."""

import keras
import numpy as np
import pytest

from keras_vit.layers import TransformerBlock
from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.causal import CausalTransformerBlock

from ..shared import randomize, to_numpy


def _tokens(shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def _random_block(tokens, num_heads, mlp_dim, **options):
    """Returns a block with random weights. Blocks of the same sizes have the same weights."""
    block = TransformerBlock(num_heads, mlp_dim, **options)
    block.build(tokens.shape)
    return randomize(block, 0.3, seed=1)


def test_attention_kernels_start_glorot_uniform():
    layer = MultiHeadAttention(num_heads=12)
    layer.build((None, 4, 192))
    limit = np.sqrt(6 / (192 + 192))
    for projection in (layer.query, layer.key, layer.value, layer.out):
        kernel = to_numpy(projection.kernel)
        assert 0.99 * limit < np.abs(kernel).max() <= limit
        # The standard deviation of a uniform distribution on [-limit, limit] is limit / sqrt(3).
        assert abs(kernel.std() - limit / np.sqrt(3)) < 0.02 * limit
        assert not to_numpy(projection.bias).any()


def test_first_mlp_bias_starts_tiny_but_not_zero():
    block = TransformerBlock(2, 4000)
    block.build((None, 4, 8))
    bias = to_numpy(block.mlp_1.bias)
    assert abs(bias.std() - 1e-6) < 1e-7


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_softmax_is_computed_in_float32(policy, monkeypatch):
    layer = MultiHeadAttention(num_heads=1, dtype=policy)
    layer.build((1, 3, 4))
    softmax = keras.ops.softmax
    dtypes = []

    def recording_softmax(x, axis=-1):
        dtypes.append(keras.backend.standardize_dtype(x.dtype))
        return softmax(x, axis=axis)

    monkeypatch.setattr(keras.ops, "softmax", recording_softmax)
    query = keras.ops.zeros((1, 3, 1, 4), dtype=layer.compute_dtype)
    scores = layer.scores(query, query)
    assert dtypes == ["float32"]
    assert keras.backend.standardize_dtype(scores.dtype) == layer.compute_dtype


def test_dropout_is_applied_only_in_training():
    tokens = np.ones((64, 4, 8), "float32")
    block = _random_block(tokens, 2, 16, dropout=0.5)
    inference = to_numpy(block(tokens))
    np.testing.assert_allclose(inference[0], inference[1], atol=1e-6)
    training = to_numpy(block(tokens, training=True))
    assert not np.allclose(training[0], training[1])


def test_stochastic_depth_drops_branches_per_example():
    tokens = np.tile(_tokens((1, 4, 8)), (512, 1, 1))
    block = _random_block(tokens, 2, 16, stochastic_depth=0.25)
    # The MLP returns zero, so each example either keeps or drops the attention branch.
    block.mlp_2.kernel.assign(np.zeros((16, 8)))
    block.mlp_2.bias.assign(np.zeros(8))
    branch = to_numpy(block(tokens)) - tokens
    training_branch = to_numpy(block(tokens, training=True)) - tokens
    is_dropped = np.all(np.abs(training_branch) < 1e-6, axis=(1, 2))
    kept = training_branch[~is_dropped]
    np.testing.assert_allclose(kept, branch[~is_dropped] / 0.75, atol=1e-4)
    assert 0.17 < is_dropped.mean() < 0.33


def test_branches_are_dropped_independently():
    tokens = np.tile(_tokens((1, 4, 8)), (400, 1, 1))
    block = _random_block(tokens, 2, 16, stochastic_depth=0.5)
    outcomes = np.unique(np.round(to_numpy(block(tokens, training=True)), 3), axis=0)
    # Each of the two branches is kept or dropped.
    assert len(outcomes) == 4


@pytest.mark.one_backend
def test_masked_block_can_return_only_the_first_token():
    tokens = np.pad(_tokens((2, 5, 12)), ((0, 0), (0, 2), (0, 0)))
    block = _random_block(tokens, 3, 20, masked=True)
    first = _random_block(tokens, 3, 20, masked=True, first_token_only=True)
    np.testing.assert_allclose(to_numpy(first(tokens)), to_numpy(block(tokens))[:, :1], atol=1e-5)


def test_masked_causal_block_ignores_padding_before_the_tokens():
    tokens = np.pad(_tokens((2, 5, 12)), ((0, 0), (2, 0), (0, 0)))
    block = CausalTransformerBlock(3, 20, masked=True)
    block.build(tokens.shape)
    randomize(block, 0.3)
    outputs = to_numpy(block(tokens))
    np.testing.assert_allclose(outputs[:, 2:], to_numpy(block(tokens[:, 2:])), atol=1e-5)
    assert not outputs[:, :2].any()


@pytest.mark.parametrize("name", ["dropout", "epsilon"])
def test_numbers_may_be_those_of_numpy(name):
    block = TransformerBlock(2, 4, **{name: np.float32(0.5)})
    assert block.get_config()[name] == 0.5


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "stochastic_depth"])
@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_rejects_rates_outside_zero_to_one(name, rate):
    with pytest.raises(ValueError, match=f"`{name}` must be a number"):
        TransformerBlock(2, 4, **{name: rate})
