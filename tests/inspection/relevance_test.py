"""Tests of attention relevance, which is compared with finite differences."""

import concurrent.futures
import contextlib
import functools
import math

import keras
import numpy as np
import pytest

from keras_vit import inspection

from ..shared import images_for, to_numpy
from .models import build, model_of_registers, vision_transformer

SMALL = {"num_layers": 2, "input_shape": (8, 16, 3), "hidden_size": 8, "num_heads": 2}


def wrapped_model():
    model, vit = vision_transformer(**SMALL)
    rescaling = keras.layers.Rescaling(1.0)
    return keras.Sequential([keras.Input((8, 16, 3)), rescaling, model]), vit


@contextlib.contextmanager
def changed_scores(attention, change):
    """Adds an array to the scores of an attention layer."""
    original = attention.scores

    def scores(query, key, **options):
        unchanged = original(query, key)
        # The last layer may compute only the scores of the class token.
        return unchanged + change[:, :, : unchanged.shape[2]]

    object.__setattr__(attention, "scores", scores)  # bypass the tracking of Keras
    yield
    object.__delattr__(attention, "scores")


def gradient_of_scores(attention, compute_logits, shape, step=1e-2):
    """Returns the derivatives of a logit with respect to the scores, from central differences.

    `compute_logits(count)` returns the logit of each of `count` copies of an image.
    """
    count = math.prod(shape)
    changes = step * np.eye(count, dtype="float32").reshape(count, *shape)
    with changed_scores(attention, changes):
        above = compute_logits(count)
    with changed_scores(attention, -changes):
        below = compute_logits(count)
    return ((above - below) / (2 * step)).reshape(shape)


@pytest.mark.parametrize(
    "build_models",
    [
        functools.partial(vision_transformer, **SMALL, classifier="gap"),
        wrapped_model,
        functools.partial(model_of_registers, **SMALL),
    ],
    ids=["gap", "wrapped", "registers"],
)
def test_relevance_matches_finite_differences(build_models, monkeypatch):
    # JAX splits longer sequences into chunks.
    monkeypatch.setattr("keras_vit.layers.attention.LONG_SEQUENCE", 1)
    model, vit = build_models()
    images = images_for(vit, 1)
    target = 2

    def compute_logits(count):
        return to_numpy(model(np.repeat(images, count, axis=0)))[:, target]

    (relevance,) = inspection.attention_relevance(model, images, [target])
    scores = inspection.attention_scores(vit, images)[:, 0]
    identity = np.eye(len(relevance))
    expected = identity
    for layer in range(2):
        attention = vit.get_layer(f"encoderblock_{layer}").attention
        gradient = gradient_of_scores(attention, compute_logits, scores[layer].shape)
        layer_relevance = np.maximum(gradient * scores[layer], 0).mean(0)
        assert layer_relevance.max() > 1e-3
        expected = (identity + layer_relevance) @ expected
    expected = expected - identity
    np.testing.assert_allclose(relevance, expected, atol=5e-3 * expected.max())


def test_relevance_defaults_to_the_predicted_class():
    model = build(**SMALL)
    weights = model.get_weights()
    images = images_for(model)
    predicted = to_numpy(model(images)).argmax(-1)
    relevance = inspection.attention_relevance(model, images)
    expected = inspection.attention_relevance(model, images, predicted)
    np.testing.assert_allclose(relevance, expected)
    other = inspection.attention_relevance(model, images, (predicted + 1) % 4)
    assert not np.allclose(relevance, other)
    np.testing.assert_equal(model.get_weights(), weights)


def test_relevance_is_thread_safe():
    model = build(**SMALL)
    images = images_for(model)
    expected = inspection.attention_relevance(model, images)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = pool.map(inspection.attention_relevance, [model, model], [images, images])
    for result in results:
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_relevance_rejects_bad_targets_and_outputs():
    model = build(**SMALL)
    images = images_for(model)
    for targets in ([1], [4, 0], [1.0, 0.0]):
        with pytest.raises(ValueError, match="for each of 2 images"):
            inspection.attention_relevance(model, images, targets)
    with pytest.raises(ValueError, match=r"must be \(B, classes\)"):
        inspection.attention_relevance(build(**SMALL, classifier="unpooled"), images)
