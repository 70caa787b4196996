"""Tests of attention scores and of the maps that are made of them."""

import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

from ..shared import images_for
from .models import build


@pytest.mark.parametrize(
    "changes",
    [{}, {"classifier": "gap"}, {"resnet_blocks": (1,), "patch_size": 2}],
    ids=["token", "gap", "hybrid"],
)
def test_scores_sum_to_one_and_reproduce_attention(changes):
    model = build(**changes)
    images = images_for(model)
    scores = inspection.attention_scores(model, images)
    tokens = 6 if "classifier" in changes else 7
    assert scores.shape == (3, 2, 3, tokens, tokens)  # layers, images, heads, queries and keys
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
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


def map_of(model, images, method="rollout", **options):
    """Returns attention maps with one value per patch, flat."""
    maps = inspection.attention_maps(model, images, method, upsample=False, **options)
    assert maps.shape == (len(images), 3, 2)
    return maps.reshape(len(images), 6)


def test_maps_are_the_class_token_row():
    model = build()
    images = images_for(model)
    scores = inspection.attention_scores(model, images)
    rollout = inspection.attention_rollout(scores)
    np.testing.assert_allclose(map_of(model, images), rollout[:, 0, 1:], atol=1e-6)
    mean = scores[0].mean(1)
    expected = mean[:, 0, 1:]
    np.testing.assert_allclose(map_of(model, images, "mean", layer=1), expected, atol=1e-6)


def test_maps_average_the_patches_without_class_token():
    model = build(classifier="gap")
    images = images_for(model)
    rollout = inspection.attention_rollout(inspection.attention_scores(model, images))
    np.testing.assert_allclose(map_of(model, images), rollout.mean(1), atol=1e-6)


def test_maps_are_upsampled_to_the_image():
    model = build()
    images = images_for(model)
    large = inspection.attention_maps(model, images)
    assert large.shape == (2, 24, 16)
    # Bilinear upsampling does not change the value in the corner.
    np.testing.assert_allclose(large[:, 0, 0], map_of(model, images)[:, 0])


def assert_maps_average_rows(model, vit, rows, prefix):
    """Checks that the maps of a model are the mean of these rows of the attention matrices.

    `prefix` is the number of tokens before the patches.
    """
    images = images_for(vit)
    model(images)
    scores = inspection.attention_scores(vit, images)
    rollout = inspection.attention_rollout(scores)
    expected = rollout[:, rows, prefix:].mean(1)
    np.testing.assert_allclose(map_of(model, images), expected, atol=1e-6)
    expected = scores[-1].mean(1)[:, rows, prefix:].mean(1)
    np.testing.assert_allclose(map_of(model, images, "mean"), expected, atol=1e-6)


def test_maps_average_both_class_tokens():
    model = build(distilled=True)
    assert_maps_average_rows(model, model, slice(0, 2), prefix=2)


def test_maps_average_the_registers_that_are_read():
    vit = build(num_registers=2)
    registers = keras_vit.FeatureModel(vit, tokens="registers")
    model = keras.Sequential([registers, keras.layers.Flatten()])
    assert_maps_average_rows(model, vit, slice(1, 3), prefix=3)


def assert_maps_omit_the_class_token(model, images):
    scores = inspection.attention_scores(model, images)
    rollout = inspection.attention_rollout(scores)
    expected = rollout[:, 1:, 1:].mean(1)
    np.testing.assert_allclose(map_of(model, images), expected, atol=1e-6)
    expected = scores[-1].mean(1)[:, 1:, 1:].mean(1)
    np.testing.assert_allclose(map_of(model, images, "mean"), expected, atol=1e-6)
    _, attention = inspection.token_attention(model, images)
    np.testing.assert_allclose(attention.reshape(2, 6), expected, atol=1e-6)


@pytest.mark.one_backend
def test_maps_omit_an_unused_class_token():
    vit = build(classifier="token_unpooled", include_top=False)
    # Pool the patches outside of the Vision Transformer.
    model = keras.Sequential([vit, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(4)])
    model.build((None, 24, 16, 3))
    assert_maps_omit_the_class_token(model, images_for(vit))


@pytest.mark.one_backend
def test_maps_omit_the_class_token_of_masked_patch_models():
    model = build(keras_vit.MaskedPatchVisionTransformer, classifier="token_unpooled")
    assert_maps_omit_the_class_token(model, images_for(model))


@pytest.mark.parametrize("method", ["rollout", "mean", "relevance"])
def test_maps_omit_class_token_if_patch_features_are_pooled(method):
    vit = build()
    pooling = [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(4)]
    patches = keras_vit.FeatureModel(vit, tokens="patch")
    model = keras.Sequential([keras.Input((24, 16, 3)), patches, *pooling])
    images = images_for(model)
    # The same model without `FeatureModel`
    unpooled = build(classifier="token_unpooled", include_top=False)
    unpooled.set_weights(vit.get_weights()[:-2])
    drop_class_token = keras.layers.Lambda(lambda tokens: tokens[:, 1:])
    reference = keras.Sequential([unpooled, drop_class_token, *pooling])
    reference(images)
    expected = map_of(reference, images, method)
    assert expected.any()
    np.testing.assert_allclose(map_of(model, images, method), expected, rtol=1e-3, atol=1e-6)


def test_maps_use_layers_up_to_the_output():
    vit = build()
    class_token = keras_vit.FeatureModel(vit, 2, tokens="class")
    model = keras.Sequential([class_token, keras.layers.Dense(4)])
    images = images_for(vit)
    model(images)
    rollout = inspection.attention_rollout(inspection.attention_scores(vit, images, [1, 2]))
    np.testing.assert_allclose(map_of(model, images), rollout[:, 0, 1:], atol=1e-6)
    relevance = map_of(model, images, "relevance")
    assert relevance.any()
    assert np.isfinite(relevance).all()


@pytest.mark.one_backend
@pytest.mark.parametrize("changes", [{}, {"classifier": "gap"}], ids=["token", "gap"])
def test_attention_of_a_patch_is_a_row_of_the_scores(changes):
    model = build(**changes)
    images = images_for(model)
    scores = inspection.attention_scores(model, images)
    prefix = scores.shape[-1] - 6
    token = prefix + 5  # the patch in row 2 and column 1
    rollout, attention = inspection.token_attention(model, images, patch=(2, 1), layer=2, head=3)
    expected = scores[1, :, 2, token, prefix:]
    np.testing.assert_allclose(attention.reshape(2, 6), expected, atol=1e-6)
    expected = inspection.attention_rollout(scores)[:, token, prefix:]
    np.testing.assert_allclose(rollout.reshape(2, 6), expected, atol=1e-6)


@pytest.mark.one_backend
@pytest.mark.parametrize("changes", [{}, {"classifier": "gap"}], ids=["token", "gap"])
def test_token_attention_defaults_to_the_maps(changes):
    model = build(**changes)
    images = images_for(model)
    rollout, attention = inspection.token_attention(model, images)
    np.testing.assert_allclose(rollout.reshape(2, 6), map_of(model, images), atol=1e-6)
    np.testing.assert_allclose(attention.reshape(2, 6), map_of(model, images, "mean"), atol=1e-6)


def test_overlays_are_dark_without_attention():
    images = np.ones((1, 4, 6, 3), "float32")
    maps = np.zeros((1, 4, 6), "float32")
    maps[0, 1, 2] = 0.25
    overlay = inspection.overlay(images, maps)
    assert overlay[0, 1, 2].tolist() == [1, 1, 1]
    assert overlay.sum() == 3
    assert inspection.overlay(images[..., :1], 0 * maps).sum() == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"layers": 0}, "Received: layer=0"),
        ({"layers": [1, 4]}, "Received: layer=4"),
        ({"layers": 1.0}, "Received: layer=1.0"),
        ({"reduce": "max"}, "Received: reduce='max'"),
    ],
)
def test_attention_scores_reject_bad_arguments(arguments, message):
    model = build()
    with pytest.raises(ValueError, match=message):
        inspection.attention_scores(model, images_for(model), **arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"method": "gradcam"}, "Received: method='gradcam'"),
        ({"method": "relevance", "targets": [4, 0]}, r"Received: targets=\[4, 0\]"),
        ({"method": "mean", "layer": None}, "Received: layer=None"),
        ({"method": "mean", "layer": [1, 2]}, re.escape("Received: layer=[1, 2]")),
    ],
)
def test_attention_maps_reject_bad_arguments(arguments, message):
    model = build()
    with pytest.raises(ValueError, match=message):
        inspection.attention_maps(model, images_for(model), **arguments)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"patch": (3, 0)}, "`patch` must be .*Received: patch=\\(3, 0\\)"),
        ({"patch": (0, -1)}, "`patch` must be"),
        ({"patch": 3}, "Received: patch=3"),
        ({"patch": (0.5, 0)}, r"Received: patch=\(0.5, 0\)"),
        ({"head": 0}, "`head` must be 1 to 3"),
        ({"head": 4}, "`head` must be 1 to 3"),
        ({"layer": 4}, "The layers of .* are 1 to 3"),
    ],
)
def test_token_attention_rejects_bad_arguments(arguments, message):
    model = build()
    with pytest.raises(ValueError, match=message):
        inspection.token_attention(model, images_for(model), **arguments)


def test_rejects_images_of_another_size_or_with_nan():
    model = build()
    images = images_for(model)
    with pytest.raises(ValueError, match="`images` must have shape"):
        inspection.attention_scores(model, images[:, :8])
    with pytest.raises(ValueError, match="Received: attention with NaN"):
        inspection.attention_maps(model, images * np.nan)


@pytest.mark.parametrize("method", ["rollout", "mean", "relevance"])
def test_rejects_empty_batch(method):
    model = build()
    with pytest.raises(ValueError, match="at least one image"):
        inspection.attention_maps(model, images_for(model)[:0], method)


def test_rollout_and_overlay_reject_other_shapes():
    with pytest.raises(ValueError, match=r"Received: shape=\(3, 4, 5\)"):
        inspection.attention_rollout(np.ones((3, 4, 5)))
    images = np.ones((2, 24, 16, 3))
    with pytest.raises(ValueError, match=r"one map of the same size for each image"):
        inspection.overlay(images, np.ones((2, 3, 2)))
