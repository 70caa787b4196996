"""Tests of layer options for other libraries' checkpoints: exact GELU, epsilons, fixed positions
and padding."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.preactivation_resnet import PreActivationUnit
from keras_vit.layers.std_conv import StdConv2D

from ..shared import randomize


def numpy_of(x):
    return keras.ops.convert_to_numpy(x)


def test_sincos_encodes_columns_then_rows():
    layer = keras_vit.SinCosPositionEmbedding((2, 3))
    table = numpy_of(layer(np.zeros((1, 6, 8), "float32")))[0]
    row = 1
    column = 2
    frequencies = np.array([1.0, 1e-4])
    expected = [f(position * frequencies) for position in (column, row) for f in (np.sin, np.cos)]
    np.testing.assert_allclose(table[row * 3 + column], np.concatenate(expected), atol=1e-6)


@pytest.mark.parametrize(
    "grid, shape, message",
    [
        ((2, 3), (1, 7, 8), "A 2x3 grid requires 6 tokens"),
        ((2, 3), (1, 6, 6), "a multiple of 4"),
        ((2, 0), (1, 6, 8), "`grid` must be an integer of 1 or more"),
        (6, (1, 6, 8), r"`grid` must be \(rows, columns\)"),
    ],
)
def test_sincos_rejects_invalid_grids_and_tokens(grid, shape, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.SinCosPositionEmbedding(grid)(np.zeros(shape, "float32"))


def filled_block(**arguments):
    block = keras_vit.TransformerBlock(2, 16, **arguments)
    block.build((None, 3, 8))
    return randomize(block)


@pytest.mark.parametrize("exact", [True, False])
def test_exact_gelu_selects_the_mlp_activation(exact):
    block = filled_block(exact_gelu=exact)
    x = np.random.default_rng(1).standard_normal((1, 3, 8)).astype("float32")
    hidden = (x @ numpy_of(block.mlp_1.kernel) + numpy_of(block.mlp_1.bias)).astype("float64")
    if exact:
        erf = np.vectorize(__import__("math").erf)
        active = 0.5 * hidden * (1 + erf(hidden / np.sqrt(2)))
    else:
        active = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
    expected = active @ np.asarray(block.mlp_2.kernel) + np.asarray(block.mlp_2.bias)
    np.testing.assert_allclose(numpy_of(block.mlp(x)), expected, atol=2e-5)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-12])
def test_block_norms_use_the_given_epsilon(epsilon):
    block = filled_block(epsilon=epsilon)
    x = 1e-3 * np.random.default_rng(1).standard_normal((1, 3, 8))
    for norm in (block.norm_1, block.norm_2):
        expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
        expected = expected * np.asarray(norm.gamma) + np.asarray(norm.beta)
        np.testing.assert_allclose(numpy_of(norm(x.astype("float32"))), expected, atol=1e-4)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-12])
def test_model_epsilon_reaches_every_norm(epsilon):
    model = keras_vit.VisionTransformer(
        input_shape=(16, 16, 3),
        patch_size=8,
        hidden_size=8,
        num_layers=2,
        num_heads=2,
        mlp_dim=8,
        classifier="map",
        epsilon=epsilon,
        exact_gelu=True,
    )
    norms = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.LayerNormalization)
    ]
    assert len(norms) == 6
    assert {norm.epsilon for norm in norms} == {epsilon}
    assert model.get_layer("pool").exact_gelu and model.get_layer("encoderblock_1").exact_gelu


@pytest.mark.parametrize("variance_epsilon, scale", [(None, 1e-5), (1e-10, 1e-5)])
def test_standardization_variants_match_numpy(variance_epsilon, scale):
    layer = StdConv2D(4, 3, variance_epsilon=variance_epsilon)
    layer.build((None, 1, 1, 2))
    kernel = scale * np.random.default_rng(0).standard_normal((3, 3, 2, 4))
    layer.kernel.assign(kernel)
    centered = kernel - kernel.mean((0, 1, 2))
    if variance_epsilon is None:
        expected = centered / (kernel.std((0, 1, 2)) + 1e-5)
    else:
        expected = centered / np.sqrt(kernel.var((0, 1, 2)) + variance_epsilon)
    pixel = np.array([1.0, 2.0], "float32").reshape(1, 1, 1, 2)
    np.testing.assert_allclose(
        numpy_of(layer(pixel))[0, 0, 0],
        np.einsum("c,cf->f", pixel.ravel(), expected[1, 1]),
        rtol=1e-4,
    )


def test_symmetric_padding_adds_one_pixel_per_side():
    layer = StdConv2D(1, 3, strides=2, padding="symmetric")
    layer.build((None, 4, 4, 1))
    kernel = np.arange(9.0).reshape(3, 3, 1, 1)
    layer.kernel.assign(kernel)
    standard = (kernel - 4)[..., 0, 0] / (kernel.std() + 1e-5)
    image = np.arange(16.0, dtype="float32").reshape(4, 4)
    padded = np.pad(image, 1)
    expected = [[(padded[i : i + 3, j : j + 3] * standard).sum() for j in (0, 2)] for i in (0, 2)]
    np.testing.assert_allclose(
        numpy_of(layer(image.reshape(1, 4, 4, 1)))[0, ..., 0], expected, rtol=1e-4
    )


def test_first_bit_group_norm_uses_epsilon_1e_5():
    unit = PreActivationUnit(32)
    x = 1e-3 * np.random.default_rng(0).standard_normal((1, 2, 2, 64)).astype("float32")
    unit.build(x.shape)
    grouped = x.reshape(1, 2, 2, 32, 2)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = grouped.var((1, 2, 4), keepdims=True)
    expected = ((grouped - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)
    np.testing.assert_allclose(numpy_of(unit.gn1(x)), expected, atol=1e-4)


def test_rejects_unknown_padding():
    with pytest.raises(ValueError, match="must be one of same, symmetric"):
        StdConv2D(4, 3, padding="valid")
    with pytest.raises(ValueError, match="zeros, minus_infinity"):
        keras_vit.PreActivationResNet((1,), pool_padding="same")
