import keras
import numpy as np
import pytest

from keras_vit.layers import TransformerBlock
from keras_vit.layers.attention import MultiHeadAttention

from ..shared import randomize


def _tokens(shape=(2, 5, 12), scale=1.0, seed=0):
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype("float32")


def _numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def _random_weights(layer, seed=1):
    randomize(layer, 0.3, seed=seed)


def _by_hand(block, tokens):
    """Computes a Transformer block with NumPy in float64, by the equations of the paper."""
    w = {weight.path.split("/", 1)[1]: _numpy(weight).astype("float64") for weight in block.weights}

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return (
            x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}/gamma"]
            + w[f"{name}/beta"]
        )

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    x = norm(tokens.astype("float64"), "norm_1")
    q, k, v = (
        np.einsum("bnd,dhk->bhnk", x, w[f"attention/{n}/kernel"])
        + w[f"attention/{n}/bias"][:, None]
        for n in ("query", "key", "value")
    )
    scores = np.einsum("bhmk,bhnk->bhmn", q, k) / np.sqrt(q.shape[-1])
    scores = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    x = (
        np.einsum("bhmn,bhnk,hkd->bmd", scores, v, w["attention/out/kernel"])
        + w["attention/out/bias"]
    )
    tokens = tokens + x
    x = gelu(norm(tokens, "norm_2") @ w["mlp_1/kernel"] + w["mlp_1/bias"])
    return tokens + x @ w["mlp_2/kernel"] + w["mlp_2/bias"]


# At scale 1e-3, the variance is close to the epsilon 1e-6. Therefore, the result depends on the
# epsilon.
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_block_matches_the_equations_of_the_paper(scale):
    block = TransformerBlock(num_heads=3, mlp_dim=20)
    tokens = _tokens(scale=scale)
    block.build(tokens.shape)
    _random_weights(block)
    np.testing.assert_allclose(_numpy(block(tokens)), _by_hand(block, tokens), atol=1e-5)


def test_first_token_only_matches_the_first_token():
    tokens = _tokens()
    whole = TransformerBlock(3, 20)
    first = TransformerBlock(3, 20, first_token_only=True)
    for block in (whole, first):
        block.build(tokens.shape)
        _random_weights(block)
    np.testing.assert_allclose(_numpy(first(tokens)), _numpy(whole(tokens))[:, :1], atol=1e-6)


def test_attention_kernels_start_glorot_uniform():
    layer = MultiHeadAttention(num_heads=12)
    layer.build((None, 4, 192))
    limit = np.sqrt(6 / (192 + 192))
    for projection in (layer.query, layer.key, layer.value, layer.out):
        kernel = _numpy(projection.kernel)
        assert 0.99 * limit < np.abs(kernel).max() <= limit
        assert abs(kernel.std() - limit / np.sqrt(3)) < 0.02 * limit  # as in a uniform distribution
        assert not _numpy(projection.bias).any()


def test_first_mlp_bias_starts_tiny_but_not_zero():
    block = TransformerBlock(2, 4000)
    block.build((None, 4, 8))
    bias = _numpy(block.mlp_1.bias)
    assert abs(bias.std() - 1e-6) < 1e-7


def test_scores_sum_to_one():
    layer = MultiHeadAttention(num_heads=2)
    tokens = _tokens()
    layer.build(tokens.shape)
    scores = _numpy(layer.scores(layer.query(tokens), layer.key(tokens)))
    assert scores.shape == (2, 2, 5, 5)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_softmax_is_computed_in_float32(policy):
    layer = MultiHeadAttention(num_heads=1, dtype=policy)
    layer.build((1, 2000, 4))
    # Each of the 2,000 equal scores is 1/2000. A bfloat16 sum of 2,000 ones can stop growing at
    # 256.
    compute = layer.compute_dtype
    query = keras.ops.zeros((1, 2000, 1, 4), dtype=compute)
    seen = []
    stock_softmax = keras.ops.softmax

    def spy(x, axis=-1):
        seen.append(keras.backend.standardize_dtype(x.dtype))
        return stock_softmax(x, axis=axis)

    from keras_vit.layers import attention

    try:
        attention.ops.softmax = spy
        scores = layer.scores(query, query)
    finally:
        attention.ops.softmax = stock_softmax
    assert seen == ["float32"]
    assert keras.backend.standardize_dtype(scores.dtype) == compute
    np.testing.assert_allclose(_numpy(keras.ops.cast(scores, "float32")), 1 / 2000, rtol=1e-2)


def test_dropout_is_applied_only_in_training():
    tokens = np.ones((64, 4, 8), "float32")
    block = TransformerBlock(2, 16, dropout=0.5)
    block.build(tokens.shape)
    _random_weights(block)
    still = _numpy(block(tokens))
    np.testing.assert_array_equal(still, _numpy(block(tokens, training=False)))
    moved = _numpy(block(tokens, training=True))
    assert not np.allclose(still, moved)
    assert not np.allclose(moved[0], moved[1])


def test_stochastic_depth_drops_branches_per_example():
    tokens = np.tile(_tokens((1, 4, 8)), (512, 1, 1))
    block = TransformerBlock(2, 16, stochastic_depth=0.25)
    block.build(tokens.shape)
    _random_weights(block)
    # The MLP returns zero, so each example either keeps or drops the attention branch.
    block.mlp_2.kernel.assign(np.zeros((16, 8)))
    block.mlp_2.bias.assign(np.zeros(8))
    branch = _numpy(block(tokens)) - tokens
    dropped = _numpy(block(tokens, training=True)) - tokens
    out = np.all(np.abs(dropped) < 1e-6, axis=(1, 2))
    np.testing.assert_allclose(dropped[~out], branch[~out] / 0.75, atol=1e-4)
    assert 0.17 < out.mean() < 0.33


def test_branches_are_dropped_independently():
    tokens = np.tile(_tokens((1, 4, 8)), (400, 1, 1))
    block = TransformerBlock(2, 16, stochastic_depth=0.5)
    block.build(tokens.shape)
    _random_weights(block)
    outcomes = np.unique(np.round(_numpy(block(tokens, training=True)), 3), axis=0)
    assert len(outcomes) == 4  # each of the two branches is kept or dropped


def test_num_heads_must_divide_the_hidden_size():
    with pytest.raises(ValueError, match="must divide.*num_heads=5, hidden_size=12"):
        TransformerBlock(5, 8)(_tokens())


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "stochastic_depth"])
@pytest.mark.parametrize("rate", [-0.1, 1.0, "half"])
def test_rejects_rates_outside_zero_to_one(name, rate):
    with pytest.raises(
        ValueError, match=rf"`{name}` must be a number in \[0, 1\). Received: {name}="
    ):
        TransformerBlock(2, 4, **{name: rate})
