"""Tests of the class token, of the selection of the first token, and of the position embeddings."""

import numpy as np
import pytest
from keras import ops

from keras_vit.layers import (
    AxialTransformerBlock,
    ClassToken,
    PositionEmbedding,
    PositionEmbedding2D,
    SinCosPositionEmbedding,
)
from keras_vit.layers.compilation import compiling_for
from keras_vit.layers.tokens import first_token

from ..shared import to_numpy


def test_positions_start_normal_and_class_token_starts_zero():
    positions = PositionEmbedding()
    positions.build((None, 400, 250))
    values = to_numpy(positions.pos_embedding)
    assert abs(values.std() - 0.02) < 2e-4
    # A truncated normal would stop at two standard deviations, 0.04.
    assert np.abs(values).max() > 0.07
    token = ClassToken()
    token.build((None, 4, 5))
    assert not to_numpy(token.cls).any()


@pytest.mark.parametrize(
    ("layer_class", "grid", "shape", "message"),
    [
        (PositionEmbedding, (2, 3), (None, 9, 8), "6 tokens, up to 2 more .*tokens=9"),
        (PositionEmbedding2D, (2, 3), (None, 8, 8), "6 tokens, up to 1 more .*tokens=8"),
        (SinCosPositionEmbedding, (2, 3), (None, None, 8), "6 tokens.*tokens=None"),
        (SinCosPositionEmbedding, (2, 3), (None, 6, 10), "a multiple of 4"),
        (SinCosPositionEmbedding, (2, 3), (None, 6, 4), "at least 8"),
        (SinCosPositionEmbedding, (2, 0), (None, 6, 8), "two positive integers"),
        (PositionEmbedding, 6, (None, 6, 8), "two positive integers"),
    ],
)
def test_positions_reject_invalid_grids_and_tokens(layer_class, grid, shape, message):
    with pytest.raises(ValueError, match=message):
        layer_class(grid).build(shape)


@pytest.mark.parametrize(
    ("layer", "tokens"),
    [
        (PositionEmbedding(), 1),
        (PositionEmbedding2D((2, 3)), 1),
        (SinCosPositionEmbedding((2, 3)), 1),
        (AxialTransformerBlock((2, 3), num_heads=2, mlp_dim=8), 12),
    ],
)
def test_built_layers_reject_other_numbers_of_tokens(layer, tokens):
    layer.build((None, 6, 8))
    with pytest.raises(ValueError, match=r"expected shape=\(None, 6, 8\)"):
        layer(np.zeros((2, tokens, 8), "float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_first_token_is_exact_on_tpus(dtype):
    random = np.random.default_rng(0).normal(size=(2, 5, 8))
    random[:, 1:, 0] = np.inf  # other tokens have no influence
    tokens = ops.cast(random, dtype)
    expected = first_token(tokens)
    assert expected.shape == (2, 1, 8)
    with compiling_for("tpu"):
        actual = first_token(tokens)
    assert actual.dtype == tokens.dtype
    np.testing.assert_array_equal(to_numpy(actual), to_numpy(expected))
