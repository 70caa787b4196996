"""Tests of layer options for other libraries' checkpoints: exact GELU, epsilons, fixed positions
and padding."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.preactivation_resnet import PreActivationUnit
from keras_vit.layers.std_conv import StdConv2D

from ..numpy_reference import ACTIVATIONS, dense, group_norm, layer_norm, weights_of
from ..shared import TWO_LAYERS, randomize, to_numpy


def test_sincos_encodes_columns_then_rows():
    layer = keras_vit.SinCosPositionEmbedding((2, 3))
    table = to_numpy(layer(np.zeros((1, 6, 8), "float32")))[0]
    row = 1
    column = 2
    frequencies = np.array([1.0, 1e-4])
    expected = np.concatenate(
        [
            np.sin(column * frequencies),
            np.cos(column * frequencies),
            np.sin(row * frequencies),
            np.cos(row * frequencies),
        ]
    )
    np.testing.assert_allclose(table[row * 3 + column], expected, atol=1e-6)


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


@pytest.mark.parametrize(("exact_gelu", "activation"), [(True, "gelu"), (False, "gelu_tanh")])
def test_exact_gelu_selects_the_mlp_activation(exact_gelu, activation):
    block = filled_block(exact_gelu=exact_gelu)
    weights = weights_of(block)
    x = np.random.default_rng(1).standard_normal((1, 3, 8)).astype("float32")
    hidden = ACTIVATIONS[activation](dense(x, weights, "mlp_1"))
    np.testing.assert_allclose(to_numpy(block.mlp(x)), dense(hidden, weights, "mlp_2"), atol=2e-5)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-12])
def test_block_norms_use_the_given_epsilon(epsilon):
    block = filled_block(epsilon=epsilon)
    x = 1e-3 * np.random.default_rng(1).standard_normal((1, 3, 8))
    for norm in (block.norm_1, block.norm_2):
        expected = layer_norm(x, weights_of(block), norm.name, epsilon)
        np.testing.assert_allclose(to_numpy(norm(x.astype("float32"))), expected, atol=1e-4)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-12])
def test_model_epsilon_reaches_every_norm(epsilon):
    model = keras_vit.VisionTransformer(
        **TWO_LAYERS, input_shape=(16, 16, 3), classifier="map", epsilon=epsilon, exact_gelu=True
    )
    norms = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.LayerNormalization)
    ]
    # Two norms per block, the norm of the pooling, and the last norm.
    assert len(norms) == 6
    assert {norm.epsilon for norm in norms} == {epsilon}
    assert model.get_layer("pool").exact_gelu and model.get_layer("encoderblock_1").exact_gelu


@pytest.mark.parametrize("variance_epsilon", [None, 1e-10])
def test_standardization_variants_match_numpy(variance_epsilon):
    layer = StdConv2D(4, 3, variance_epsilon=variance_epsilon)
    layer.build((None, 1, 1, 2))
    # At this scale, the epsilons matter.
    kernel = 1e-5 * np.random.default_rng(0).standard_normal((3, 3, 2, 4))
    layer.kernel.assign(kernel)
    centered = kernel - kernel.mean((0, 1, 2))
    if variance_epsilon is None:
        expected = centered / (kernel.std((0, 1, 2)) + 1e-5)
    else:
        expected = centered / np.sqrt(kernel.var((0, 1, 2)) + variance_epsilon)
    pixel = np.array([1.0, 2.0], "float32")
    outputs = to_numpy(layer(pixel.reshape(1, 1, 1, 2)))
    # Only the middle of the kernel meets the pixel.
    np.testing.assert_allclose(outputs[0, 0, 0], pixel @ expected[1, 1], rtol=1e-4)


def test_symmetric_padding_adds_one_pixel_per_side():
    layer = StdConv2D(1, 3, strides=2, padding="symmetric")
    layer.build((None, 4, 4, 1))
    kernel = np.arange(9.0).reshape(3, 3, 1, 1)
    layer.kernel.assign(kernel)
    standardized = (kernel - 4)[..., 0, 0] / (kernel.std() + 1e-5)
    image = np.arange(16.0, dtype="float32").reshape(4, 4)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(image, 1), (3, 3))[::2, ::2]
    expected = (windows * standardized).sum((2, 3))
    outputs = to_numpy(layer(image.reshape(1, 4, 4, 1)))
    np.testing.assert_allclose(outputs[0, ..., 0], expected, rtol=1e-4)


def test_first_bit_group_norm_uses_epsilon_1e_5():
    unit = PreActivationUnit(32)
    x = 1e-3 * np.random.default_rng(0).standard_normal((1, 2, 2, 64)).astype("float32")
    unit.build(x.shape)
    expected = group_norm(x, epsilon=1e-5)
    np.testing.assert_allclose(to_numpy(unit.gn1(x)), expected, atol=1e-4)


def test_rejects_unknown_padding():
    with pytest.raises(ValueError, match="must be one of same, symmetric"):
        StdConv2D(4, 3, padding="valid")
    with pytest.raises(ValueError, match="zeros, minus_infinity"):
        keras_vit.PreActivationResNet((1,), pool_padding="same")
