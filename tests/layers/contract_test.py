"""Runs Keras' standard layer test on every public layer and on some internal layers."""

import inspect

import keras
import numpy as np
import pytest
from keras.src import testing

import keras_vit
from keras_vit import layers
from keras_vit.layers.std_conv import StdConv2D
from keras_vit.layers.tokens import DistilledHead

BLOCK = {"num_heads": 2, "mlp_dim": 12}
# Layer, arguments, shape of the inputs, shape of the outputs, and number of trainable weights.
CASES = [
    (layers.Patches, {"patch_size": 2}, (3, 4, 6, 5), (3, 6, 20), 0),
    (layers.PatchEncoder, {"hidden_size": 7, "use_bias": False}, (3, 6, 20), (3, 6, 7), 1),
    (layers.ClassToken, {}, (3, 6, 8), (3, 7, 8), 1),
    (layers.PositionEmbedding, {"grid": (2, 3)}, (3, 7, 8), (3, 7, 8), 1),
    (layers.PositionEmbedding2D, {"grid": (2, 3)}, (3, 7, 8), (3, 7, 8), 3),
    (layers.NoPositionEmbedding, {"grid": (2, 3)}, (3, 7, 8), (3, 7, 8), 0),
    (
        layers.TransformerBlock,
        {
            **BLOCK,
            "dropout": 0.1,
            "attention_dropout": 0.2,
            "stochastic_depth": 0.3,
            "relative_positions": True,
            "first_token_only": True,
        },
        (3, 5, 8),
        (3, 1, 8),
        17,
    ),
    (
        layers.TransformerBlock,
        {
            **BLOCK,
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
    (layers.AxialTransformerBlock, {**BLOCK, "grid": (2, 3)}, (3, 6, 8), (3, 6, 8), 32),
    (layers.ResNetStem, {"blocks": (1,), "width": 32}, (2, 9, 14, 3), (2, 3, 4, 128), 15),
    (layers.InputPreprocessing, {}, (2, 4, 6, 3), (2, 4, 6, 3), 0),
    (layers.SinCosPositionEmbedding, {"grid": (2, 3)}, (2, 6, 8), (2, 6, 8), 0),
    (layers.AttentionPooling, {**BLOCK, "exact_gelu": True}, (2, 5, 8), (2, 8), 15),
    (layers.PreActivationResNet, {"blocks": (1,), "width": 32}, (2, 9, 16, 3), (2, 3, 4, 128), 13),
    (
        StdConv2D,
        {"filters": 4, "kernel_size": 3, "strides": 2, "padding": "symmetric"},
        (2, 5, 4, 3),
        (2, 3, 2, 4),
        1,
    ),
]


def _mark_slow_cases(cases):
    """Marks the cases with dropout or a ResNet, which take long, for one backend."""
    slow_arguments = {"blocks", "dropout"}
    marked = []
    for case in cases:
        marks = pytest.mark.one_backend if slow_arguments & set(case[1]) else ()
        marked.append(pytest.param(*case, marks=marks))
    return marked


# Keras' layer test trains on a generator with the default `shuffle=True`, which causes a warning.
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize(
    ("layer", "arguments", "input_shape", "output_shape", "trainable_weights"),
    _mark_slow_cases(CASES),
)
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


@pytest.mark.parametrize(
    ("layer", "arguments"), [case[:2] for case in CASES if case[0].__name__ in layers.__all__]
)
def test_config_has_every_constructor_argument(layer, arguments):
    # Ignore the arguments of `keras.layers.Layer`, which differ between Keras versions.
    keras_own = {"kwargs", "activity_regularizer", "autocast", "name", "trainable", "dtype", "self"}
    # On Python 3.11.2, the signature of the class itself is that of an inherited `__new__`.
    parameters = inspect.signature(layer.__init__).parameters
    config = layer(**arguments).get_config()
    assert set(config) - keras_own == parameters.keys() - keras_own


def test_public_layers_have_cases():
    assert {case[0].__name__ for case in CASES} >= set(layers.__all__)


def test_public_layers_are_registered_under_their_names():
    for name in layers.__all__:
        layer = getattr(keras_vit, name)
        assert keras.saving.get_registered_name(layer) == f"keras_vit>{name}"


@pytest.mark.parametrize(
    ("layer", "axes"),
    [(layers.Patches(2), "B, H, W, C"), (layers.TransformerBlock(2, 4), "B, N, D")],
)
def test_rejects_inputs_of_wrong_rank(layer, axes):
    with pytest.raises(ValueError, match=rf"inputs of shape \({axes}\).*shape=\(2, 4\)"):
        layer(np.zeros((2, 4), "float32"))
