"""Tests of the arguments of `VisionTransformer`, and of its precision and compilation."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import TWO_LAYERS, random_images, randomize, to_numpy

TINY = {**TWO_LAYERS, "input_shape": (16, 24, 3), "hidden_size": 16, "mlp_dim": 24, "classes": 5}


def _tiny(**arguments):
    return keras_vit.VisionTransformer(**{**TINY, **arguments})


def _images(count=2):
    return random_images((count, 16, 24, 3))


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({"include_top": False, "representation_size": 9}, (9,)),
        ({"include_top": False, "classifier": "unpooled"}, (6, 16)),
    ],
)
def test_models_without_a_head_return_features(arguments, shape):
    model = _tiny(**arguments)
    assert model.output_shape == (None, *shape)
    assert model(_images()).shape == (2, *shape)


@pytest.mark.parametrize(
    ("arguments", "has_stem"),
    [
        ({"resnet_blocks": (), "patch_size": 2}, True),
        ({"stem": "resnet", "patch_size": 2}, True),
        ({}, False),
        ({"stem": "", "resnet_blocks": ()}, False),
    ],
    ids=str,
)
def test_stem_is_selected_by_name_or_blocks(arguments, has_stem):
    names = [layer.name for layer in _tiny(**arguments).layers]
    assert ("resnet_stem" in names) == has_stem


def test_new_model_outputs_the_head_bias():
    logits = to_numpy(_tiny(head_bias=-6.9)(_images()))
    np.testing.assert_allclose(logits, -6.9, rtol=1e-6)


def test_classifier_activation_is_applied():
    probabilities = to_numpy(_tiny(classifier_activation="softmax")(_images()))
    np.testing.assert_allclose(probabilities, 0.2, rtol=1e-6)


def test_stochastic_depth_grows_linearly_over_blocks():
    model = _tiny(num_layers=5, stochastic_depth=0.2)
    rates = [block.stochastic_depth for block in model.blocks]
    np.testing.assert_allclose(rates, [0, 0.05, 0.1, 0.15, 0.2])
    assert _tiny(num_layers=1, stochastic_depth=0.2).blocks[0].stochastic_depth == 0


def test_rates_are_passed_to_layers():
    model = _tiny(dropout=0.1, attention_dropout=0.2, stochastic_depth=0.3)
    block = model.blocks[1]
    layers = (model.token_dropout, block.drop, block.attention.drop, block.drop_path)
    assert [layer.rate for layer in layers] == [0.1, 0.1, 0.2, 0.3]


def test_last_block_computes_only_one_token():
    first, last = _tiny().blocks
    assert first.output.shape == (None, 7, 16)
    assert last.output.shape == (None, 1, 16)


@pytest.mark.one_backend
def test_attention_scores_count_negative_layers_from_the_end():
    model = randomize(_tiny(), 0.2, seed=1)
    tokens = model.embed(_images())
    first, last = (to_numpy(model.attention_scores(number, tokens)) for number in (1, 2))
    np.testing.assert_array_equal(to_numpy(model.attention_scores(-1, tokens)), last)
    assert np.abs(first - last).max() > 1e-4
    with pytest.raises(ValueError, match="layer=0"):
        model.attention_scores(0, tokens)


HYBRID = {"resnet_blocks": (1,), "patch_size": 2}


@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        ("mixed_bfloat16", {}),
        pytest.param("mixed_float16", HYBRID, marks=pytest.mark.one_backend),
    ],
)
def test_mixed_precision_is_close_to_float32_and_trains(policy, arguments):
    images = _images(4)
    exact = randomize(_tiny(**arguments), 0.2, seed=1)
    keras.config.set_dtype_policy(policy)
    model = randomize(_tiny(**arguments), 0.2, seed=1)
    assert model.blocks[0].norm_1.dtype_policy.name == policy
    logits = model(images)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    np.testing.assert_allclose(logits, exact(images), atol=0.08)
    before = model.head.kernel.numpy()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # In float16, the loss scale starts high and steps are skipped until the gradients are finite.
    for _ in range(3):
        model.train_on_batch(images, np.arange(4))
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert (model.head.kernel.numpy() != before).any()


@pytest.mark.full
@pytest.mark.one_backend
def test_hybrid_trains_with_xla(xla):
    model = _tiny(**HYBRID, dropout=0.1, stochastic_depth=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=True)
    assert np.isfinite(model.train_on_batch(_images(4), np.arange(4)))


def test_epsilon_reaches_every_norm():
    model = _tiny(classifier="map", epsilon=1e-5)
    norms = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.LayerNormalization)
    ]
    # Two norms per block, the norm of the pooling, and the last norm.
    assert [norm.epsilon for norm in norms] == 6 * [1e-5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 3}, "must divide .*num_heads=3"),
        ({"classifier": "cls"}, "one of token, gap"),
        ({"dropout": -0.1}, "dropout=-0.1"),
        ({"stochastic_depth": 2.0}, "stochastic_depth=2.0"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"representation_size": -1}, "representation_size=-1"),
        ({"epsilon": 0}, "a number above 0"),
        ({"input_shape": (16, 24)}, "three positive integers"),
        ({"input_shape": (17, 24, 3)}, "valid heights are 16 and 24"),
        ({"input_shape": (64, 70, 3), "resnet_blocks": (), "patch_size": 4}, "are 64 and 80"),
        ({"resnet_blocks": 3}, "`resnet_blocks` must be a tuple"),
        ({"stem": "conv"}, "`stem` must be"),
        ({"stem": "", "resnet_blocks": (1,)}, 'requires stem="resnet"'),
        ({"position_embedding": "2d"}, "one of learned"),
        ({"position_embedding": "sincos2d"}, "`class_token_position` must be False"),
        ({"position_embedding_at": "head"}, "one of stem"),
        (
            {"position_embedding": "relative", "position_embedding_at": "every_layer"},
            "must be stem unless",
        ),
        (
            {"class_token_position": False, "position_embedding_at": "every_layer"},
            "must be stem unless",
        ),
        ({"position_embedding": "learned2d", "hidden_size": 9, "num_heads": 3}, "must be even"),
        ({"distilled": True, "classifier": "gap"}, '`distilled` requires classifier="token"'),
        ({"distilled": True, "position_embedding": "learned2d"}, "no 2-D"),
        ({"distilled": True, "representation_size": 4}, "no `representation_size`"),
        ({"pool_norm": True, "classifier": "unpooled"}, "`pool_norm` requires"),
    ],
    ids=str,
)
def test_rejects_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        _tiny(**arguments)


@pytest.mark.parametrize("rotary", [{"grid": (2, 3)}, {"base": 3}], ids=str)
def test_rejects_unknown_names_in_rotary(rotary):
    with pytest.raises(TypeError, match="`rotary` takes no argument"):
        _tiny(rotary=rotary)
