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
        ({"include_top": False}, (16,)),
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
    rates = [model.get_layer(f"encoderblock_{i}").stochastic_depth for i in range(5)]
    np.testing.assert_allclose(rates, [0, 0.05, 0.1, 0.15, 0.2])
    single = _tiny(num_layers=1, stochastic_depth=0.2)
    assert single.get_layer("encoderblock_0").stochastic_depth == 0


def test_default_rates_are_zero():
    model = _tiny()
    randomize(model, seed=1)
    images = _images()
    training = to_numpy(model(images, training=True))
    inference = to_numpy(model(images, training=False))
    # On TensorFlow, training uses another GELU implementation.
    np.testing.assert_allclose(training, inference, rtol=1e-5, atol=1e-5)


def test_rates_are_passed_to_layers():
    model = _tiny(dropout=0.1, attention_dropout=0.2, stochastic_depth=0.3)
    block = model.get_layer("encoderblock_1")
    assert model.get_layer("dropout").rate == block.drop.rate == 0.1
    assert block.attention.drop.rate == 0.2
    assert block.drop_path.rate == 0.3


def test_last_block_computes_only_one_token():
    model = _tiny()
    assert model.get_layer("encoderblock_0").output.shape == (None, 7, 16)
    assert model.get_layer("encoderblock_1").output.shape == (None, 1, 16)
    for other in ("gap", "unpooled", "token_unpooled"):
        assert not _tiny(classifier=other).get_layer("encoderblock_1").first_token_only


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
    assert f"mixed_{model.blocks[0].norm_1.compute_dtype}" == policy
    logits = model(images)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    np.testing.assert_allclose(to_numpy(logits), to_numpy(exact(images)), atol=0.08)
    before = model.get_weights()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # In float16, the loss scale starts high and steps are skipped until the gradients are finite.
    for _ in range(3):
        model.train_on_batch(images, np.arange(4))
    after = model.get_weights()
    assert all(np.isfinite(weight).all() for weight in after)
    assert any((new != old).any() for new, old in zip(after, before))


def test_layer_norm_statistics_are_float32_under_float16():
    # The squares of these tokens overflow float16 (maximum 65,504).
    keras.config.set_dtype_policy("mixed_float16")
    block = keras_vit.TransformerBlock(2, 8)
    tokens = 1000 * np.random.default_rng(0).normal(size=(1, 3, 8)).astype("float16")
    block.build(tokens.shape)
    normed = to_numpy(block.norm_1(tokens))
    expected = tokens.astype("float64")
    expected = (expected - expected.mean(-1, keepdims=True)) / expected.std(-1, keepdims=True)
    np.testing.assert_allclose(normed, expected, atol=5e-3)


@pytest.mark.full
@pytest.mark.one_backend
def test_hybrid_trains_with_xla(xla):
    model = _tiny(**HYBRID, dropout=0.1, stochastic_depth=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=True)
    assert np.isfinite(model.train_on_batch(_images(4), np.arange(4)))


@pytest.mark.parametrize("epsilon", [1e-6, 1e-12])
def test_epsilon_reaches_every_norm(epsilon):
    model = _tiny(classifier="map", epsilon=epsilon)
    norms = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.LayerNormalization)
    ]
    # Two norms per block, the norm of the pooling, and the last norm.
    assert len(norms) == 6
    assert {norm.epsilon for norm in norms} == {epsilon}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 3}, "must divide .*: num_heads=3, hidden_size=16"),
        ({"classifier": "cls"}, "one of token, gap"),
        ({"dropout": -0.1}, "dropout=-0.1"),
        ({"stochastic_depth": 2.0}, "stochastic_depth=2.0"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"representation_size": -1}, "representation_size=-1"),
        ({"epsilon": 0}, "a number above 0"),
        ({"input_shape": (16, 24)}, "three positive integers"),
        ({"input_shape": (None, 24, 3)}, "three positive integers"),
        ({"input_shape": (17, 24, 3)}, "valid heights are 16 and 24"),
        ({"input_shape": (16, 4, 3)}, "valid widths are 8"),
        (
            {"input_shape": (64, 70, 3), "resnet_blocks": (), "patch_size": 4},
            "valid widths are 64 and 80",
        ),
        ({"resnet_blocks": 3}, "`resnet_blocks` must be a tuple"),
        ({"resnet_blocks": (1, 0)}, "`resnet_blocks` must be a tuple"),
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
        ({"rotary": {"grid": (2, 3)}}, "`rotary` must not contain"),
    ],
    ids=str,
)
def test_rejects_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        _tiny(**arguments)
