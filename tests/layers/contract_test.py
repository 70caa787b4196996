"""Runs Keras' standard layer test on every public layer and on some internal layers."""

import keras
import numpy as np
import pytest
from keras.src import testing

import keras_vit
from keras_vit import layers
from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.preactivation_resnet import PreActivationUnit
from keras_vit.layers.resnet_stem import BottleneckUnit
from keras_vit.layers.std_conv import StdConv2D
from keras_vit.layers.tokens import DistilledHead

COLUMNS = ("layer", "arguments", "input_shape", "output_shape", "trainable_weights")
CASES = [
    (layers.Patches, {"patch_size": 2}, (3, 4, 6, 5), (3, 6, 20), 0),
    (layers.PatchEncoder, {"hidden_size": 7}, (3, 6, 20), (3, 6, 7), 2),
    (layers.ClassToken, {}, (3, 6, 8), (3, 7, 8), 1),
    (layers.PositionEmbedding, {}, (3, 6, 8), (3, 6, 8), 1),
    (layers.PositionEmbedding, {"grid": (2, 3)}, (3, 7, 8), (3, 7, 8), 1),
    (layers.PositionEmbedding2D, {"grid": (2, 3)}, (3, 7, 8), (3, 7, 8), 3),
    (layers.NoPositionEmbedding, {"grid": (2, 3)}, (3, 7, 8), (3, 7, 8), 0),
    (layers.TransformerBlock, {"num_heads": 2, "mlp_dim": 12}, (3, 5, 8), (3, 5, 8), 16),
    (
        layers.TransformerBlock,
        {"num_heads": 2, "mlp_dim": 12, "relative_positions": True, "first_token_only": True},
        (3, 5, 8),
        (3, 1, 8),
        17,
    ),
    (
        layers.TransformerBlock,
        {
            "num_heads": 4,
            "mlp_dim": 12,
            "dropout": 0.1,
            "attention_dropout": 0.2,
            "stochastic_depth": 0.3,
        },
        (3, 5, 8),
        (3, 5, 8),
        16,
    ),
    (
        layers.TransformerBlock,
        {"num_heads": 2, "mlp_dim": 12, "first_token_only": True},
        (3, 5, 8),
        (3, 1, 8),
        16,
    ),
    (
        layers.TransformerBlock,
        {"num_heads": 2, "mlp_dim": 12, "remat": True},
        (3, 5, 8),
        (3, 5, 8),
        16,
    ),
    (
        layers.TransformerBlock,
        {
            "num_heads": 2,
            "mlp_dim": 12,
            "mlp": "swiglu",
            "mlp_norm": True,
            "mlp_bias": False,
            "qk_norm": True,
            "attention_bias": "qv",
            "attention_norm": True,
            "layer_scale": 0.1,
            "rotary": {"grid": (2, 3), "prefix": 1},
            "remat": True,
        },
        (3, 7, 8),
        (3, 7, 8),
        23,
    ),
    (DistilledHead, {"units": 5}, (3, 8), (3, 5), 4),
    (layers.RegisterTokens, {"count": 2, "after": 1}, (3, 6, 8), (3, 8, 8), 1),
    (layers.LayerScale, {}, (3, 6, 8), (3, 6, 8), 1),
    (layers.PatchEncoder, {"hidden_size": 7, "use_bias": False}, (3, 6, 20), (3, 6, 7), 1),
    (
        layers.AxialTransformerBlock,
        {"grid": (2, 3), "num_heads": 2, "mlp_dim": 12},
        (3, 6, 8),
        (3, 6, 8),
        32,
    ),
    (layers.ResNetStem, {"width": 32}, (2, 9, 14, 3), (2, 3, 4, 32), 3),
    (layers.ResNetStem, {"blocks": (1, 1), "width": 32}, (2, 17, 12, 3), (2, 3, 2, 256), 27),
    (layers.InputPreprocessing, {}, (2, 4, 6, 3), (2, 4, 6, 3), 0),
    (layers.SinCosPositionEmbedding, {"grid": (2, 3)}, (2, 6, 8), (2, 6, 8), 0),
    (
        layers.AttentionPooling,
        {"num_heads": 2, "mlp_dim": 12, "exact_gelu": True},
        (2, 5, 8),
        (2, 8),
        15,
    ),
    (
        layers.PreActivationResNet,
        {"blocks": (1, 1), "width": 32},
        (2, 17, 32, 3),
        (2, 3, 4, 256),
        23,
    ),
    (PreActivationUnit, {"channels": 32, "strides": 2}, (2, 5, 4, 32), (2, 3, 2, 128), 10),
    (MultiHeadAttention, {"num_heads": 2, "dropout": 0.1}, (3, 5, 8), (3, 5, 8), 8),
    (BottleneckUnit, {"channels": 32, "strides": 2}, (2, 5, 4, 32), (2, 3, 2, 128), 12),
    (StdConv2D, {"filters": 4, "kernel_size": 3, "strides": 2}, (2, 5, 4, 3), (2, 3, 2, 4), 1),
    (
        StdConv2D,
        {"filters": 4, "kernel_size": 3, "padding": "symmetric"},
        (2, 5, 6, 3),
        (2, 5, 6, 4),
        1,
    ),
]


def _mark_slow_cases(cases):
    """Marks the cases with dropout or convolutions, which take long, for one backend."""
    slow_arguments = {"blocks", "dropout", "channels"}
    marked = []
    for case in cases:
        marks = pytest.mark.one_backend if slow_arguments & set(case[1]) else ()
        marked.append(pytest.param(*case, marks=marks))
    return marked


# Keras' layer test trains on a generator with the default `shuffle=True`, which causes a warning.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize(COLUMNS, _mark_slow_cases(CASES))
def test_layer_passes_the_keras_layer_test(
    layer, arguments, input_shape, output_shape, trainable_weights
):
    testing.TestCase().run_layer_test(
        layer,
        init_kwargs=arguments,
        input_shape=input_shape,
        expected_output_shape=output_shape,
        expected_num_trainable_weights=trainable_weights,
        expected_num_non_trainable_weights=0,
        # Keras warns when it trains a layer without weights.
        run_training_check=trainable_weights > 0,
    )


def test_public_layers_have_cases():
    assert {case[0].__name__ for case in CASES} >= set(layers.__all__)


@pytest.mark.parametrize("name", layers.__all__)
def test_public_layer_is_registered_and_exported(name):
    layer = getattr(keras_vit, name)
    assert keras.saving.get_registered_name(layer) == f"keras_vit>{name}"


@pytest.mark.one_backend
@pytest.mark.parametrize(COLUMNS[:4], [case[:4] for case in CASES])
def test_layer_accepts_several_batch_sizes(layer, arguments, input_shape, output_shape):
    inputs = keras.Input(shape=input_shape[1:])
    model = keras.Model(inputs, layer(**arguments)(inputs))
    assert model.output_shape == (None, *output_shape[1:])
    for batch in (1, 3):
        images = np.random.default_rng(0).normal(size=(batch, *input_shape[1:])).astype("float32")
        assert model(images).shape == (batch, *output_shape[1:])


@pytest.mark.parametrize(
    ("layer", "axes"),
    [
        (layers.Patches(2), "B, H, W, C"),
        (layers.PatchEncoder(4), r"B, N, P\*P\*C"),
        (layers.ClassToken(), "B, N, D"),
        (layers.PositionEmbedding(), "B, N, D"),
        (layers.TransformerBlock(2, 4), "B, N, D"),
        (layers.ResNetStem(), "B, H, W, C"),
    ],
)
def test_rejects_inputs_of_wrong_rank(layer, axes):
    with pytest.raises(ValueError, match=rf"inputs of shape \({axes}\).*shape=\(2, 4\)"):
        layer(np.zeros((2, 4), "float32"))
