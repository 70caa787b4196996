"""Tests of attention scores and maps."""

import concurrent.futures
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit import inspection

from ..shared import THREE_LAYERS, images_for, randomize


def build(constructor=keras_vit.VisionTransformer, **changes):
    model = constructor(**THREE_LAYERS | changes)
    return randomize(model, 0.5, seed=1)


@pytest.mark.parametrize(
    "changes",
    [{}, {"classifier": "gap"}, {"resnet_blocks": (1,), "patch_size": 2}],
    ids=["token", "gap", "hybrid"],
)
def test_scores_sum_to_one_and_reproduce_attention(changes):
    model = build(**changes)
    images = images_for(model)
    tokens = 6 + ("classifier" not in changes)
    scores = inspection.attention_scores(model, images)
    assert scores.shape == (3, 2, 3, tokens, tokens) and scores.dtype == np.float32
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    # Recompute the attention layer's output from the scores.
    block = model.get_layer("encoderblock_1")
    x = block.norm_1(keras.Model(model.input, block.input)(images))
    value = np.einsum("bnd,dhk->bhnk", x, block.attention.value.kernel)
    value += np.array(block.attention.value.bias)[:, None]
    mixed = np.einsum("bhqn,bhnk->bqhk", scores[1], value)
    out = np.einsum("bqhk,hkd->bqd", mixed, block.attention.out.kernel) + np.array(
        block.attention.out.bias
    )
    np.testing.assert_allclose(block.attention(x), out, atol=1e-4)


def test_attention_scores_select_layers_and_average_heads():
    model = build()
    images = images_for(model)
    all_scores = inspection.attention_scores(model, images)
    np.testing.assert_array_equal(inspection.attention_scores(model, images, -1), all_scores[2])
    np.testing.assert_array_equal(
        inspection.attention_scores(model, images, [3, 1]), all_scores[[2, 0]]
    )
    mean = inspection.attention_scores(model, images, [2], reduce="mean")
    np.testing.assert_allclose(mean[0], all_scores[1].mean(1), atol=1e-6)


def test_scores_sum_to_one_in_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = build()
    scores = inspection.attention_scores(model, images_for(model))
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)


def test_rollout_matches_the_reference():
    # The expected numbers were computed with Abnar and Zuidema's code.
    scores = np.random.RandomState(3).rand(3, 2, 5, 5)
    scores /= scores.sum(-1, keepdims=True)
    for residual, expected in (
        (True, [0.297334, 0.179080, 0.179350, 0.143235, 0.201001]),
        (False, [0.237098, 0.196690, 0.196411, 0.137072, 0.232729]),
    ):
        rollout = inspection.attention_rollout(scores, residual)
        np.testing.assert_allclose(rollout[0], expected, atol=1e-6)
        np.testing.assert_allclose(rollout.sum(-1), 1, atol=1e-12)


def test_maps_match_rollout_and_mean_scores():
    model = build()
    gap = build(classifier="gap")
    images = images_for(model)
    scores = inspection.attention_scores(model, images)
    rollout = inspection.attention_rollout(scores)
    ours = inspection.attention_maps(model, images, upsample=False)
    np.testing.assert_allclose(ours, rollout[:, 0, 1:].reshape(2, 3, 2), atol=1e-6)
    mean = inspection.attention_maps(model, images, "mean", layer=1, upsample=False)
    np.testing.assert_allclose(mean, scores[0].mean(1)[:, 0, 1:].reshape(2, 3, 2), atol=1e-6)
    ours = inspection.attention_maps(gap, images, upsample=False)
    rollout = inspection.attention_rollout(inspection.attention_scores(gap, images))
    np.testing.assert_allclose(ours, rollout.mean(1).reshape(2, 3, 2), atol=1e-6)
    large = inspection.attention_maps(model, images)
    assert large.shape == (2, 24, 16)
    # Bilinear upsampling does not change the value in the corner.
    np.testing.assert_allclose(
        large[:, 0, 0], inspection.attention_maps(model, images, upsample=False)[:, 0, 0]
    )


@pytest.mark.parametrize("kind", ["distilled", "registers"])
def test_maps_average_the_rows_that_are_read(kind):
    if kind == "distilled":
        model = vit = build(distilled=True)
        rows = slice(0, 2)
        prefix = 2
    else:
        vit = build(num_registers=2)
        model = keras.Sequential(
            [keras_vit.FeatureModel(vit, tokens="registers"), keras.layers.Flatten()]
        )
        rows = slice(1, 3)
        prefix = 3
    images = images_for(vit)
    model(images)
    scores = inspection.attention_scores(vit, images)
    for method, matrix in (
        ("rollout", inspection.attention_rollout(scores)),
        ("mean", scores[-1].mean(1)),
    ):
        expected = matrix[:, rows, prefix:].mean(1).reshape(2, 3, 2)
        ours = inspection.attention_maps(model, images, method, upsample=False)
        np.testing.assert_allclose(ours, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["gap", "wrapped", "registers"])
def test_relevance_matches_finite_differences(kind, monkeypatch):
    # JAX splits longer sequences into chunks.
    monkeypatch.setattr("keras_vit.layers.attention.LONG_SEQUENCE", 1)
    small = {"num_layers": 2, "input_shape": (8, 16, 3), "hidden_size": 8, "num_heads": 2}
    model = build(
        **small, **{"gap": {"classifier": "gap"}, "registers": {"num_registers": 1}}.get(kind, {})
    )
    images = images_for(model, 1)
    whole = model
    if kind == "wrapped":
        whole = keras.Sequential(
            [keras.Input(images.shape[1:]), keras.layers.Rescaling(1.0), model]
        )
    elif kind == "registers":
        registers = keras_vit.FeatureModel(model, tokens="registers")
        whole = keras.Sequential([registers, keras.layers.Flatten(), keras.layers.Dense(3)])
    relevance = inspection.attention_relevance(whole, images, [2])
    tokens = relevance.shape[1]
    scores = inspection.attention_scores(model, images)[:, 0]  # (L, heads, N, N)
    maps = []
    step = 1e-2
    for layer in range(2):
        block = model.get_layer(f"encoderblock_{layer}").attention
        original = block.scores
        gradient = np.zeros((2, tokens, tokens))
        for head, query, key in np.ndindex(*gradient.shape):
            change = np.zeros((1, 2, tokens, tokens), "float32")
            change[0, head, query, key] = step
            outputs = []
            for sign in (1, -1):

                def moved(q, k, scores_of=original, change=sign * change, **_):
                    unchanged = scores_of(q, k)  # the last layer may compute only the class token
                    return unchanged + change[:, :, : unchanged.shape[2]]

                object.__setattr__(block, "scores", moved)
                outputs.append(float(whole(images)[0, 2]))
            gradient[head, query, key] = (outputs[0] - outputs[1]) / (2 * step)
        object.__delattr__(block, "scores")
        maps.append(np.maximum(gradient * scores[layer], 0).mean(0))
    first, second = maps
    assert first.max() > 1e-3 and second.max() > 1e-3
    expected = (np.eye(tokens) + second) @ (np.eye(tokens) + first) - np.eye(tokens)
    np.testing.assert_allclose(relevance[0], expected, atol=5e-3 * expected.max())


@pytest.mark.one_backend
@pytest.mark.parametrize("is_masked", [False, True])
def test_maps_omit_an_unused_class_token(is_masked):
    constructor = (
        keras_vit.MaskedPatchVisionTransformer if is_masked else keras_vit.VisionTransformer
    )
    model = build(constructor, classifier="token_unpooled", include_top=is_masked)
    images = images_for(model)
    if not is_masked:  # pool the patches outside the model
        model = keras.Sequential(
            [model, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(4)]
        )
        model.build((None, 24, 16, 3))
    scores = inspection.attention_scores(model, images)
    expected = inspection.attention_rollout(scores)[:, 1:, 1:].mean(1).reshape(2, 3, 2)
    np.testing.assert_allclose(
        inspection.attention_maps(model, images, upsample=False), expected, atol=1e-6
    )
    mean = scores[-1].mean(1)[:, 1:, 1:].mean(1).reshape(2, 3, 2)
    np.testing.assert_allclose(
        inspection.attention_maps(model, images, "mean", upsample=False), mean, atol=1e-6
    )
    np.testing.assert_allclose(inspection.token_attention(model, images)[1], mean, atol=1e-6)


def test_maps_omit_class_token_if_patches_are_pooled_outside():
    vit = build()
    outside = [
        keras_vit.FeatureModel(vit, tokens="patch"),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(4),
    ]
    model = keras.Sequential([keras.Input((24, 16, 3)), *outside])
    images = images_for(model)
    plain = build(classifier="token_unpooled", include_top=False)
    plain.set_weights(vit.get_weights()[:-2])
    expected = keras.Sequential([plain, keras.layers.Lambda(lambda x: x[:, 1:]), *outside[1:]])
    expected(images)
    for method in ("rollout", "mean", "relevance"):
        ours, theirs = (
            inspection.attention_maps(m, images, method, upsample=False) for m in (model, expected)
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6)
        assert theirs.any()


def test_maps_use_layers_up_to_the_output():
    vit = build()
    model = keras.Sequential(
        [keras_vit.FeatureModel(vit, 2, tokens="class"), keras.layers.Dense(4)]
    )
    images = images_for(vit)
    model(images)
    rollout = inspection.attention_rollout(inspection.attention_scores(vit, images, [1, 2]))[
        :, 0, 1:
    ].reshape(2, 3, 2)
    np.testing.assert_allclose(
        inspection.attention_maps(model, images, upsample=False), rollout, atol=1e-6
    )
    relevance = inspection.attention_maps(model, images, "relevance", upsample=False)
    assert relevance.any() and np.isfinite(relevance).all()


def test_relevance_defaults_to_the_predicted_class():
    model = build()
    images = images_for(model)
    predicted = ops.convert_to_numpy(model(images)).argmax(-1)
    np.testing.assert_allclose(
        inspection.attention_relevance(model, images),
        inspection.attention_relevance(model, images, predicted),
    )
    before = [np.array(weight) for weight in model.weights]
    inspection.attention_maps(model, images, "relevance", targets=[0, 1])
    for old, new in zip(before, model.weights):
        np.testing.assert_array_equal(old, new)


def test_overlays_are_dark_without_attention():
    images = np.ones((1, 4, 6, 3), "float32")
    maps = np.zeros((1, 4, 6), "float32")
    maps[0, 1, 2] = 0.25
    shown = inspection.overlay(images, maps)
    assert shown[0, 1, 2].tolist() == [1, 1, 1] and shown.sum() == 3
    assert inspection.overlay(images[..., :1], 0 * maps).sum() == 0


def test_rejects_bad_requests():
    model = build()
    images = images_for(model)
    unpooled = build(classifier="unpooled")
    for match, call in (
        ("Received: layer=0", lambda: inspection.attention_scores(model, images, 0)),
        ("Received: layer=4", lambda: inspection.attention_scores(model, images, [1, 4])),
        (
            "Received: reduce='max'",
            lambda: inspection.attention_scores(model, images, reduce="max"),
        ),
        ("`images` must have shape", lambda: inspection.attention_scores(model, images[:, :8])),
        ("Received: method='gradcam'", lambda: inspection.attention_maps(model, images, "gradcam")),
        (
            r"Received: targets=\[4, 0\]",
            lambda: inspection.attention_maps(model, images, "relevance", targets=[4, 0]),
        ),
        (r"for each of 2 images", lambda: inspection.attention_relevance(model, images, [1])),
        ("Received: layer=1.0", lambda: inspection.attention_scores(model, images, 1.0)),
        ("Received: attention with NaN", lambda: inspection.attention_maps(model, images * np.nan)),
        ("Received: patch=3", lambda: inspection.token_attention(model, images, patch=3)),
        (
            r"Received: patch=\(0.5, 0\)",
            lambda: inspection.token_attention(model, images, patch=(0.5, 0)),
        ),
        (r"must be \(B, classes\)", lambda: inspection.attention_relevance(unpooled, images)),
        (r"Received: shape=\(3, 4, 5\)", lambda: inspection.attention_rollout(np.ones((3, 4, 5)))),
        (
            r"one map of the same size for each image",
            lambda: inspection.overlay(images, np.ones((2, 3, 2))),
        ),
    ):
        with pytest.raises(ValueError, match=match):
            call()


@pytest.mark.one_backend
@pytest.mark.parametrize("changes", [{}, {"classifier": "gap"}], ids=["token", "gap"])
def test_token_attention_is_a_row_of_the_scores(changes):
    model = build(**changes)
    images = images_for(model)
    scores = inspection.attention_scores(model, images)
    prefix = scores.shape[-1] - 6
    rollout, attention = inspection.token_attention(model, images, patch=(2, 1), layer=2, head=3)
    np.testing.assert_allclose(
        attention.reshape(2, 6), scores[1, :, 2, prefix + 5, prefix:], atol=1e-6
    )
    expected = inspection.attention_rollout(scores)[:, prefix + 5, prefix:]
    np.testing.assert_allclose(rollout.reshape(2, 6), expected, atol=1e-6)
    rollout, attention = inspection.token_attention(model, images)
    np.testing.assert_allclose(
        rollout, inspection.attention_maps(model, images, upsample=False), atol=1e-6
    )
    np.testing.assert_allclose(
        attention, inspection.attention_maps(model, images, "mean", upsample=False), atol=1e-6
    )


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patch": (3, 0)}, "`patch` must be .*Received: patch=\\(3, 0\\)"),
        ({"patch": (0, -1)}, "`patch` must be"),
        ({"head": 0}, "`head` must be 1 to 3"),
        ({"head": 4}, "`head` must be 1 to 3"),
        ({"layer": 4}, "The layers of .* are 1 to 3"),
    ],
)
def test_token_attention_rejects_bad_arguments(arguments, message):
    model = build()
    with pytest.raises(ValueError, match=message):
        inspection.token_attention(model, images_for(model), **arguments)


@pytest.mark.parametrize("layer", [None, [1, 2]])
def test_mean_map_requires_one_layer(layer):
    model = build()
    with pytest.raises(ValueError, match=f"Received: layer={re.escape(repr(layer))}"):
        inspection.attention_maps(model, images_for(model), "mean", layer=layer)


@pytest.mark.parametrize("method", ["rollout", "mean", "relevance"])
def test_rejects_empty_batch(method):
    model = build()
    with pytest.raises(ValueError, match="at least one image"):
        inspection.attention_maps(model, images_for(model)[:0], method)


def test_relevance_is_thread_safe():
    model = build()
    images = images_for(model)
    expected = inspection.attention_relevance(model, images)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for result in [
            pool.submit(inspection.attention_relevance, model, images) for _ in range(2)
        ]:
            np.testing.assert_allclose(result.result(), expected, atol=1e-6)
