"""Tests of the class token, of the selection of the first token, and of the position embeddings."""

import numpy as np
import pytest
from keras import ops

from keras_vit.layers import (
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


def test_rejects_grid_with_other_number_of_tokens():
    with pytest.raises(ValueError, match="6 tokens, up to 2 more .*tokens=9"):
        PositionEmbedding((2, 3)).build((None, 9, 4))
    with pytest.raises(ValueError, match="6 tokens, up to 1 more .*tokens=8"):
        PositionEmbedding2D((2, 3)).build((None, 8, 4))
    with pytest.raises(ValueError, match="6 tokens.*tokens=None"):
        SinCosPositionEmbedding((2, 3)).build((None, None, 8))


@pytest.mark.parametrize(
    ("grid", "shape", "message"),
    [
        ((2, 3), (1, 7, 8), "requires 6 tokens"),
        ((2, 3), (1, 6, 6), "a multiple of 4"),
        ((2, 0), (1, 6, 8), "two positive integers"),
        (6, (1, 6, 8), "must be .*rows, columns"),
    ],
)
def test_sincos_rejects_invalid_grids_and_tokens(grid, shape, message):
    with pytest.raises(ValueError, match=message):
        SinCosPositionEmbedding(grid)(np.zeros(shape, "float32"))


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
    np.testing.assert_array_equal(
        to_numpy(ops.cast(actual, "float32")), to_numpy(ops.cast(expected, "float32"))
    )
