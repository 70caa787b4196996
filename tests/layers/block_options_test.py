"""Tests of the options of Transformer blocks, mostly against an implementation in NumPy."""

import functools

import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers.rotary import rotary_table

from ..numpy_reference import ROTARY, rotate, transformer_block, weights_of
from ..shared import randomize_around_unit_norms, to_numpy

BLOCK = {"num_heads": 2, "mlp_dim": 12}
# The tokens are a class token and 2 x 3 patches.
GRID = (2, 3)
TOKENS = np.random.default_rng(1).standard_normal((2, 7, 16)).astype("float32")
# Options of blocks. `rotary` is a key of `ROTARY`.
OPTIONS = [
    {"mlp": "gelu"},
    {"mlp": "quick_gelu"},
    {"mlp": "swiglu"},
    {"mlp": "swiglu", "mlp_norm": True, "mlp_bias": False, "epsilon": 1e-2},
    {"attention_bias": "qv", "layer_scale": 0.1},
    {"attention_bias": "", "qk_norm": True, "epsilon": 1e-2},
    {"rotary": "dinov3", "qk_norm": True},
    {"rotary": "eva02", "attention_bias": "qvo"},
    {"rotary": "pe"},
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def _built_block(options, **more):
    options = {**BLOCK, **options, **more}
    if "rotary" in options:
        options["rotary"] = {**ROTARY[options["rotary"]], "grid": GRID, "prefix": 1}
    block = layers.TransformerBlock(**options)
    block.build(TOKENS.shape)
    return block


def _block_and_expected_outputs(options):
    """Returns a block with random weights, and its outputs for `TOKENS` computed with NumPy."""
    block = randomize_around_unit_norms(_built_block(options), 0.4)
    arguments = {name: options[name] for name in ("mlp", "epsilon") if name in options}
    if "rotary" in options:
        arguments["rotate"] = functools.partial(
            rotate, family=options["rotary"], grid=GRID, prefix=1
        )
    return block, transformer_block(TOKENS.astype("float64"), weights_of(block), **arguments)


@each_option
def test_block_matches_numpy(options):
    block, expected = _block_and_expected_outputs(options)
    np.testing.assert_allclose(to_numpy(block(TOKENS)), expected, rtol=2e-4, atol=2e-4)


@each_option
def test_rematerialized_block_of_one_token_matches_numpy(options):
    whole, expected = _block_and_expected_outputs(options)
    block = _built_block(options, first_token_only=True, remat=True)
    block.set_weights(whole.get_weights())
    for training in (False, True):
        outputs = to_numpy(block(TOKENS, training=training))
        np.testing.assert_allclose(
            outputs, expected[:, :1], rtol=2e-4, atol=2e-4, err_msg=f"training={training}"
        )


@pytest.mark.one_backend
@pytest.mark.parametrize("name", [*ROTARY, "plain"])
def test_attention_and_chunked_attention_match_scores(name, monkeypatch):
    monkeypatch.setattr("keras_vit.layers.attention.LONG_SEQUENCE", 1)
    monkeypatch.setattr("keras_vit.layers.attention.CHUNK", 3)
    rotary = None
    if name in ROTARY:
        rotary = {**ROTARY[name], "grid": GRID, "prefix": 1}
    attention = layers.attention.MultiHeadAttention(2, qk_norm=True, rotary=rotary)
    attention.build(TOKENS.shape)
    randomize_around_unit_norms(attention, 0.4)
    value = attention.value(TOKENS)
    scores = to_numpy(attention.scores_of(TOKENS))
    expected = to_numpy(attention.out(np.einsum("bhqn,bnhk->bqhk", scores, value)))
    np.testing.assert_allclose(to_numpy(attention(TOKENS)), expected, atol=2e-5)
    query = attention._positioned(attention.query(TOKENS), attention.query_norm)
    key = attention._positioned(attention.key(TOKENS), attention.key_norm)
    chunked = attention.out(attention._attend_in_chunks(query, key, value))
    np.testing.assert_allclose(to_numpy(chunked), expected, atol=2e-5)


def test_config_without_options_means_the_defaults():
    added = ("mlp", "mlp_norm", "mlp_bias", "attention_bias", "qk_norm", "rotary", "layer_scale")
    config = layers.TransformerBlock(**BLOCK).get_config()
    old_config = {name: value for name, value in config.items() if name not in added}
    old = layers.TransformerBlock.from_config(old_config)
    explicit = layers.TransformerBlock(**BLOCK, mlp="gelu_tanh", attention_bias="qkvo")
    for block in (old, explicit):
        block.build(TOKENS.shape)
    randomize_around_unit_norms(old, 0.4)
    explicit.set_weights(old.get_weights())
    np.testing.assert_array_equal(to_numpy(old(TOKENS)), to_numpy(explicit(TOKENS)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mlp": "relu"}, "`mlp` must be one of .*Received: mlp='relu'"),
        ({"attention_bias": "abc"}, "letters of .*Received: biases='abc'"),
        ({"rotary": {"theta": 1.0}}, "`rotary` must contain `grid`"),
        ({"rotary": {"grid": (2, 3), "base": 1.0}}, "`rotary` must contain `grid`"),
        ({"rotary": {"grid": (2, 2)}}, "require 4 tokens"),
        (
            {"rotary": {"grid": (2, 3), "prefix": 1, "style": "thirds"}},
            "`style` must be one of half",
        ),
    ],
    ids=str,
)
def test_rejects_invalid_block_options(options, message):
    with pytest.raises(ValueError, match=message):
        layers.TransformerBlock(**BLOCK, **options).build(TOKENS.shape)


def test_rotary_table_rejects_head_sizes_that_four_does_not_divide():
    with pytest.raises(ValueError, match="a multiple of 4"):
        rotary_table(6, grid=GRID)


@pytest.mark.parametrize("option", [{"reference": 16}, {"offset": 0.5}], ids=str)
def test_rotary_table_rejects_options_of_other_coordinates(option):
    with pytest.raises(ValueError, match="require coordinates='index'"):
        rotary_table(8, grid=GRID, **option)
