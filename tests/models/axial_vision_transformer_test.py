"""Tests of Axial-ViT, whose blocks attend along the rows and then the columns of the grid."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints, layers

from ..numpy_reference import transformer_block, weights_of
from ..shared import TWO_LAYERS, images_for, randomize, to_numpy

MODEL = {**TWO_LAYERS, "input_shape": (16, 24, 3)}


def test_block_matches_blocks_of_rows_and_then_columns_in_numpy():
    grid = (2, 3)
    block = layers.AxialTransformerBlock(grid, num_heads=2, mlp_dim=12)
    tokens = np.random.default_rng(0).normal(size=(3, 6, 8)).astype("float32")
    block.build(tokens.shape)
    randomize(block, 0.5)
    expected = tokens.astype("float64").reshape(3, *grid, 8)
    row_weights = weights_of(block.row)
    column_weights = weights_of(block.column)
    for row in range(2):
        expected[:, row] = transformer_block(expected[:, row], row_weights)
    for column in range(3):
        expected[:, :, column] = transformer_block(expected[:, :, column], column_weights)
    np.testing.assert_allclose(to_numpy(block(tokens)), expected.reshape(3, 6, 8), atol=1e-4)


@pytest.mark.one_backend
def test_files_restore_the_model(tmp_path):
    model = randomize(keras_vit.AxialVisionTransformer(**MODEL), 0.5)
    images = images_for(model)
    model.save(tmp_path / "model.keras")
    checkpoints.save(model, tmp_path / "model.npz")
    for restored in (
        keras.saving.load_model(tmp_path / "model.keras"),
        keras_vit.AxialVisionTransformer(**MODEL, weights=tmp_path / "model.npz"),
        keras_vit.from_pretrained(tmp_path / "model.npz"),
    ):
        np.testing.assert_array_equal(restored(images), model(images))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patch_size": 5}, "a whole number of patches"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"stochastic_depth": 1.0}, "stochastic_depth=1.0"),
    ],
)
def test_rejects_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.AxialVisionTransformer(**{**MODEL, **arguments})
