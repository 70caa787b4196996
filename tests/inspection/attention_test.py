"""Tests of attention scores and of the maps that are made of them."""

import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

from ..shared import images_for
from .models import build, model_of_registers, vision_transformer


def map_of(model, images, method="rollout", **options):
    """Returns attention maps with one value per patch, flat."""
    maps = inspection.attention_maps(model, images, method, upsample=False, **options)
    assert maps.shape == (len(images), 3, 2)
    return maps.reshape(len(images), 6)


def pooling_layers():
    return [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(4)]


def model_that_pools_patches():
    vit = build()
    return keras.Sequential([keras_vit.FeatureModel(vit, tokens="patch"), *pooling_layers()]), vit


def model_that_pools_outside():
    vit = build(classifier="token_unpooled", include_top=False)
    return keras.Sequential([vit, *pooling_layers()]), vit


def masked_patch_model():
    return vision_transformer(
        constructor=keras_vit.MaskedPatchVisionTransformer, classifier="token_unpooled"
    )


def test_scores_reproduce_the_attention():
    model = build()
    images = images_for(model)
    scores = inspection.attention_scores(model, images)
    assert scores.shape == (3, 2, 3, 7, 7)  # layers, images, heads, queries and keys
    # Recompute the attention layer's output from the scores.
    block = model.get_layer("encoderblock_1")
    attention = block.attention
    x = block.norm_1(keras.Model(model.input, block.input)(images))
    value = np.einsum("bnd,dhk->bhnk", x, attention.value.kernel)
    value += np.array(attention.value.bias)[:, None]
    mixed = np.einsum("bhqn,bhnk->bqhk", scores[1], value)
    expected = np.einsum("bqhk,hkd->bqd", mixed, attention.out.kernel)
    expected += np.array(attention.out.bias)
    np.testing.assert_allclose(attention(x), expected, atol=1e-4)


def test_attention_scores_select_layers_and_average_heads():
    model = build()
    images = images_for(model)
    scores = inspection.attention_scores(model, images)
    last = inspection.attention_scores(model, images, -1)
    np.testing.assert_array_equal(last, scores[2])
    third_and_first = inspection.attention_scores(model, images, [3, 1])
    np.testing.assert_array_equal(third_and_first, scores[[2, 0]])
    (mean,) = inspection.attention_scores(model, images, [2], reduce="mean")
    np.testing.assert_allclose(mean, scores[1].mean(1), atol=1e-6)


def test_scores_sum_to_one_in_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = build()
    scores = inspection.attention_scores(model, images_for(model))
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    "residual, expected",
    [
        # The numbers were computed with Abnar and Zuidema's code.
        (True, [0.297334, 0.179080, 0.179350, 0.143235, 0.201001]),
        (False, [0.237098, 0.196690, 0.196411, 0.137072, 0.232729]),
    ],
)
def test_rollout_matches_the_reference(residual, expected):
    scores = np.random.RandomState(3).rand(3, 2, 5, 5)
    scores /= scores.sum(-1, keepdims=True)
    rollout = inspection.attention_rollout(scores, residual)
    np.testing.assert_allclose(rollout[0], expected, atol=1e-6)
    np.testing.assert_allclose(rollout.sum(-1), 1, atol=1e-12)


@pytest.mark.parametrize(
    ("build_models", "rows", "prefix"),
    [
        # `rows` are the tokens that the output reads, and `prefix` is the number of tokens before
        # the patches.
        (vision_transformer, slice(1), 1),
        (functools.partial(vision_transformer, classifier="gap"), slice(None), 0),
        (functools.partial(vision_transformer, distilled=True), slice(2), 2),
        (model_of_registers, slice(1, 3), 3),
        (model_that_pools_patches, slice(1, None), 1),
        (model_that_pools_outside, slice(1, None), 1),
        (masked_patch_model, slice(1, None), 1),
    ],
    ids=["token", "gap", "distilled", "registers", "patches", "outside", "masked_patches"],
)
def test_maps_average_the_tokens_that_are_read(build_models, rows, prefix):
    model, vit = build_models()
    images = images_for(vit)
    model(images)
    scores = inspection.attention_scores(vit, images)
    expected_rollout = inspection.attention_rollout(scores)[:, rows, prefix:].mean(1)
    expected_mean = scores.mean(2)[:, :, rows, prefix:].mean(2)
    np.testing.assert_allclose(map_of(model, images), expected_rollout, atol=1e-6)
    np.testing.assert_allclose(map_of(model, images, "mean"), expected_mean[-1], atol=1e-6)
    first = map_of(model, images, "mean", layer=1)
    np.testing.assert_allclose(first, expected_mean[0], atol=1e-6)
    rollout, attention = inspection.token_attention(model, images)
    np.testing.assert_allclose(rollout.reshape(2, 6), expected_rollout, atol=1e-6)
    np.testing.assert_allclose(attention.reshape(2, 6), expected_mean[-1], atol=1e-6)


def test_maps_are_upsampled_to_the_image():
    model = build()
    images = images_for(model)
    large = inspection.attention_maps(model, images)
    assert large.shape == (2, 24, 16)
    # Bilinear upsampling does not change the value in the corner.
    np.testing.assert_allclose(large[:, 0, 0], map_of(model, images)[:, 0])


def test_relevance_omits_class_token_if_patch_features_are_pooled():
    model, vit = model_that_pools_patches()
    images = images_for(vit)
    model(images)
    # The same model without `FeatureModel`
    unpooled = build(classifier="token_unpooled", include_top=False)
    unpooled.set_weights(vit.get_weights()[:-2])
    drop_class_token = keras.layers.Lambda(lambda tokens: tokens[:, 1:])
    reference = keras.Sequential([unpooled, drop_class_token, *model.layers[1:]])
    reference(images)
    expected = map_of(reference, images, "relevance")
    assert expected.any()
    np.testing.assert_allclose(map_of(model, images, "relevance"), expected, rtol=1e-3, atol=1e-6)


def test_maps_use_layers_up_to_the_output():
    vit = build()
    class_token = keras_vit.FeatureModel(vit, 2, tokens="class")
    model = keras.Sequential([class_token, keras.layers.Dense(4)])
    images = images_for(vit)
    model(images)
    scores = inspection.attention_scores(vit, images, [1, 2])
    expected = inspection.attention_rollout(scores)[:, 0, 1:]
    np.testing.assert_allclose(map_of(model, images), expected, atol=1e-6)
    rollout, _ = inspection.token_attention(model, images)
    np.testing.assert_allclose(rollout.reshape(2, 6), expected, atol=1e-6)
    assert map_of(model, images, "relevance").any()


def test_attention_of_a_patch_is_a_row_of_the_scores():
    model = build()
    images = images_for(model)
    scores = inspection.attention_scores(model, images)
    token = 1 + 5  # the patch in row 2 and column 1, after the class token
    rollout, attention = inspection.token_attention(model, images, patch=(2, 1), layer=2, head=3)
    np.testing.assert_allclose(attention.reshape(2, 6), scores[1, :, 2, token, 1:], atol=1e-6)
    expected = inspection.attention_rollout(scores)[:, token, 1:]
    np.testing.assert_allclose(rollout.reshape(2, 6), expected, atol=1e-6)


def test_overlays_are_dark_without_attention():
    images = np.ones((1, 4, 6, 3), "float32")
    maps = np.zeros((1, 4, 6), "float32")
    maps[0, 1, 2] = 0.25
    overlay = inspection.overlay(images, maps)
    assert overlay[0, 1, 2].tolist() == [1, 1, 1]
    assert overlay.sum() == 3
    assert inspection.overlay(images[..., :1], 0 * maps).sum() == 0


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (inspection.attention_scores, {"layers": [1, 4]}, "Received: layer=4"),
        (inspection.attention_scores, {"reduce": "max"}, "Received: reduce='max'"),
        (inspection.attention_maps, {"method": "gradcam"}, "Received: method='gradcam'"),
        (inspection.attention_maps, {"method": "mean", "layer": [1, 2]}, "Received: layer="),
        (inspection.token_attention, {"patch": (0, -1)}, "`patch` must be"),
        (inspection.token_attention, {"patch": 3}, "`patch` must be"),
        (inspection.token_attention, {"head": 0}, "`head` must be 1 to 3"),
        (inspection.token_attention, {"head": 4}, "`head` must be 1 to 3"),
    ],
)
def test_rejects_bad_arguments(function, arguments, message):
    model = build()
    with pytest.raises(ValueError, match=message):
        function(model, images_for(model), **arguments)


def test_rejects_bad_images():
    model = build()
    images = images_for(model)
    with pytest.raises(ValueError, match="`images` must have shape"):
        inspection.attention_scores(model, images[:, :8])
    with pytest.raises(ValueError, match="attention with NaN"):
        inspection.attention_maps(model, images * np.nan)
    with pytest.raises(ValueError, match="at least one image"):
        inspection.attention_maps(model, images[:0])


def test_rollout_and_overlay_reject_other_shapes():
    with pytest.raises(ValueError, match="`scores` must be"):
        inspection.attention_rollout(np.ones((3, 4, 5)))
    with pytest.raises(ValueError, match="one map of the same size"):
        inspection.overlay(np.ones((2, 24, 16, 3)), np.ones((2, 3, 2)))
