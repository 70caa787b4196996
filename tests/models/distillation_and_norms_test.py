"""Tests of model options: the distillation token, the attention norm and the norm after pooling."""

import numpy as np
import pytest

import keras_vit

from ..shared import TWO_LAYERS, random_images, randomize, to_numpy

IMAGES = random_images((2, 16, 24, 3))


def build(**arguments):
    model = keras_vit.VisionTransformer(**TWO_LAYERS, input_shape=(16, 24, 3), **arguments)
    return randomize(model, seed=1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"distilled": True},
        {"distilled": True, "num_registers": 2, "class_token_position": False},
        {"attention_norm": True, "pool_norm": True},
        {"pool_norm": True, "classifier": "map", "representation_size": 5},
    ],
)
def test_config_round_trip_and_features_match_logits(arguments):
    model = build(**arguments)
    logits = to_numpy(model(IMAGES))
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy(IMAGES), logits)
    features = keras_vit.features(model, IMAGES, tokens="pooled")
    np.testing.assert_allclose(model.head(features), logits, atol=1e-5)
    np.testing.assert_allclose(model.intermediates(IMAGES)["pre_logits"], features, atol=1e-5)


def test_distilled_model_averages_two_heads():
    model = build(distilled=True)
    assert (model.num_class_tokens, model.num_prefix_tokens, model.num_tokens) == (2, 2, 8)
    tokens = to_numpy(model.intermediates(IMAGES)["encoded"])
    first = tokens[:, 0] @ to_numpy(model.head.kernel) + to_numpy(model.head.bias)
    second = to_numpy(model.head.distillation(tokens[:, 1]))
    np.testing.assert_allclose(model(IMAGES), (first + second) / 2, atol=1e-5)


def test_gap_excludes_registers():
    model = build(classifier="gap", num_registers=2)
    intermediates = model.intermediates(IMAGES)
    pooled = to_numpy(intermediates["encoded"])[:, 2:].mean(1)
    np.testing.assert_allclose(intermediates["pre_logits"], pooled, atol=1e-5)
    np.testing.assert_allclose(model(IMAGES), to_numpy(model.head(pooled)), atol=1e-5)


def test_pool_norm_leaves_tokens_unnormalized():
    model = build(pool_norm=True, classifier="gap")
    intermediates = model.intermediates(IMAGES)
    np.testing.assert_array_equal(intermediates["encoded"], intermediates["tokens"][-1])
    layers_with_weights = {weight.path.split("/")[0] for weight in model.weights}
    assert "pool_norm" in layers_with_weights and "encoder_norm" not in layers_with_weights
