"""Tests of the input of the head: the pooled tokens, or the class tokens, and the norm of them."""

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
        {"distilled": True, "num_registers": 2, "class_token_position": False},
        {"attention_norm": True, "pool_norm": True},
        {"pool_norm": True, "classifier": "map", "representation_size": 5},
    ],
    ids=str,
)
def test_pooled_features_are_the_input_of_the_head(arguments):
    model = build(**arguments)
    pooled = keras_vit.features(model, IMAGES, tokens="pooled")
    np.testing.assert_allclose(model.intermediates(IMAGES)["pre_logits"], pooled, atol=1e-5)
    np.testing.assert_allclose(model.head(pooled), model(IMAGES), atol=1e-5)


def test_pre_logits_apply_only_to_the_last_layer():
    model = build(representation_size=5)
    first, last = keras_vit.features(model, IMAGES, [1, 2], tokens="pooled")
    assert (first.shape, last.shape) == ((2, model.hidden_size), (2, 5))


def test_distilled_model_averages_two_heads():
    model = build(distilled=True)
    assert (model.num_class_tokens, model.num_prefix_tokens, model.num_tokens) == (2, 2, 8)
    tokens = to_numpy(model.intermediates(IMAGES)["encoded"])
    first = tokens[:, 0] @ to_numpy(model.head.kernel) + to_numpy(model.head.bias)
    second = to_numpy(model.head.distillation(tokens[:, 1]))
    np.testing.assert_allclose(model(IMAGES), (first + second) / 2, atol=1e-5)


def test_gap_excludes_registers():
    intermediates = build(classifier="gap", num_registers=2).intermediates(IMAGES)
    patches = to_numpy(intermediates["encoded"])[:, 2:]
    np.testing.assert_allclose(intermediates["pre_logits"], patches.mean(1), atol=1e-5)


def test_pool_norm_leaves_tokens_unnormalized():
    model = build(pool_norm=True, classifier="gap")
    intermediates = model.intermediates(IMAGES)
    encoded = to_numpy(intermediates["encoded"])
    np.testing.assert_array_equal(encoded, intermediates["tokens"][-1])
    expected = model.pool_norm(encoded.mean(1))
    np.testing.assert_allclose(intermediates["pre_logits"], expected, atol=1e-5)
