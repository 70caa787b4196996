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
    {"mlp": "gelu", "rotary": "pe"},
    {"mlp": "quick_gelu", "attention_bias": "qv", "layer_scale": 0.1},
    {"mlp": "swiglu", "rotary": "eva02", "attention_bias": "qvo"},
    {"mlp": "swiglu", "mlp_norm": True, "mlp_bias": False, "epsilon": 1e-2},
    {"attention_bias": "", "qk_norm": True, "epsilon": 1e-2},
    {"rotary": "dinov3", "qk_norm": True},
]


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


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_block_matches_numpy(options):
    block, expected = _block_and_expected_outputs(options)
    np.testing.assert_allclose(to_numpy(block(TOKENS)), expected, rtol=2e-4, atol=2e-4)
    first = _built_block(options, first_token_only=True, remat=True)
    first.set_weights(block.get_weights())
    for training in (False, True):
        outputs = to_numpy(first(TOKENS, training=training))
        np.testing.assert_allclose(outputs, expected[:, :1], rtol=2e-4, atol=2e-4)


@pytest.mark.one_backend
def test_attention_matches_its_scores():
    rotary = {**ROTARY["dinov3"], "grid": GRID, "prefix": 1}
    attention = layers.attention.MultiHeadAttention(2, qk_norm=True, rotary=rotary)
    attention.build(TOKENS.shape)
    randomize_around_unit_norms(attention, 0.4)
    scores = to_numpy(attention.scores_of(TOKENS))
    mixed = np.einsum("bhqn,bnhk->bqhk", scores, attention.value(TOKENS))
    expected = to_numpy(attention.out(mixed))
    np.testing.assert_allclose(to_numpy(attention(TOKENS)), expected, atol=2e-5)


def test_config_of_an_earlier_version_means_the_defaults():
    config = layers.TransformerBlock(**BLOCK).get_config()
    added = ("remat", "mlp", "mlp_norm", "mlp_bias", "attention_bias", "qk_norm", "rotary")
    old_config = {name: value for name, value in config.items() if name not in added}
    assert layers.TransformerBlock.from_config(old_config).get_config() == config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mlp": "relu"}, "`mlp` must be one of"),
        ({"epsilon": 0.0}, "`epsilon` must be a number above 0"),
        ({"attention_bias": "abc"}, "letters of"),
        ({"rotary": {"grid": (2, 2)}}, "require 4 tokens"),
    ],
    ids=str,
)
def test_rejects_invalid_block_options(options, message):
    with pytest.raises(ValueError, match=message):
        layers.TransformerBlock(**BLOCK, **options).build(TOKENS.shape)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_size": 6}, "`head_size` must be a multiple of 4"),
        ({"theta": 0.0}, "`theta` must be above 0"),
        ({"style": "thirds"}, "`style` must be one of"),
        ({"reference": 16}, "require coordinates='index'"),
        ({"offset": 0.5}, "require coordinates='index'"),
    ],
    ids=str,
)
def test_rejects_invalid_rotary_options(options, message):
    with pytest.raises(ValueError, match=message):
        rotary_table(**{"head_size": 8, "grid": GRID, **options})
