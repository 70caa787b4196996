"""Tests of the class token and the position embedding."""

import numpy as np
import pytest

from keras_vit.layers import ClassToken, PositionEmbedding

from ..shared import to_numpy


def test_class_token_comes_first():
    tokens = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("float32")
    layer = ClassToken()
    layer.build(tokens.shape)
    layer.cls.assign(np.arange(5, dtype="float32").reshape(1, 1, 5))
    result = to_numpy(layer(tokens))
    np.testing.assert_array_equal(result[:, 0], np.tile(np.arange(5), (3, 1)))
    np.testing.assert_array_equal(result[:, 1:], tokens)


def test_positions_are_added_to_tokens():
    tokens = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("float32")
    layer = PositionEmbedding()
    result = to_numpy(layer(tokens))
    np.testing.assert_array_equal(result, tokens + to_numpy(layer.pos_embedding))


def test_initial_positions_are_normal_and_class_token_is_zero():
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
    with pytest.raises(ValueError, match="6 tokens, or 7 .*, or 8 .*tokens=9"):
        PositionEmbedding((2, 3)).build((None, 9, 4))
    with pytest.raises(ValueError, match=r"`grid` must be \(rows, columns\). Received: grid=4"):
        PositionEmbedding(4)


def test_rejects_dynamic_number_of_tokens():
    with pytest.raises(ValueError, match="static number of tokens"):
        PositionEmbedding().build((None, None, 4))
