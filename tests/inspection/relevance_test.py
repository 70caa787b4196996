"""Tests of attention relevance, which is compared with finite differences."""

import concurrent.futures
import contextlib

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection

from ..shared import images_for, to_numpy
from .models import build

SMALL = {"num_layers": 2, "input_shape": (8, 16, 3), "hidden_size": 8, "num_heads": 2}


def gap_model():
    """Returns a Vision Transformer, and a model that contains it."""
    vit = build(**SMALL, classifier="gap")
    return vit, vit


def wrapped_model():
    vit = build(**SMALL)
    rescaling = keras.layers.Rescaling(1.0)
    return vit, keras.Sequential([keras.Input((8, 16, 3)), rescaling, vit])


def model_of_registers():
    vit = build(**SMALL, num_registers=1)
    registers = keras_vit.FeatureModel(vit, tokens="registers")
    return vit, keras.Sequential([registers, keras.layers.Flatten(), keras.layers.Dense(3)])


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


def gradient_of_scores(attention, compute_logit, shape, step=1e-2):
    """Returns the derivatives of a logit with respect to the scores, from central differences."""
    gradient = np.zeros(shape)
    for index in np.ndindex(shape):
        change = np.zeros((1, *shape), "float32")
        change[0][index] = step
        with changed_scores(attention, change):
            above = compute_logit()
        with changed_scores(attention, -change):
            below = compute_logit()
        gradient[index] = (above - below) / (2 * step)
    return gradient


@pytest.mark.parametrize(
    "build_models",
    [gap_model, wrapped_model, model_of_registers],
    ids=["gap", "wrapped", "registers"],
)
def test_relevance_matches_finite_differences(build_models, monkeypatch):
    # JAX splits longer sequences into chunks.
    monkeypatch.setattr("keras_vit.layers.attention.LONG_SEQUENCE", 1)
    vit, model = build_models()
    images = images_for(vit, 1)
    target = 2

    def compute_logit():
        return float(model(images)[0, target])

    (relevance,) = inspection.attention_relevance(model, images, [target])
    scores = inspection.attention_scores(vit, images)[:, 0]
    identity = np.eye(len(relevance))
    expected = identity
    for layer in range(2):
        attention = vit.get_layer(f"encoderblock_{layer}").attention
        gradient = gradient_of_scores(attention, compute_logit, scores[layer].shape)
        layer_relevance = np.maximum(gradient * scores[layer], 0).mean(0)
        assert layer_relevance.max() > 1e-3
        expected = (identity + layer_relevance) @ expected
    expected = expected - identity
    np.testing.assert_allclose(relevance, expected, atol=5e-3 * expected.max())


def test_relevance_defaults_to_the_predicted_class():
    model = build()
    images = images_for(model)
    predicted = to_numpy(model(images)).argmax(-1)
    relevance = inspection.attention_relevance(model, images)
    expected = inspection.attention_relevance(model, images, predicted)
    np.testing.assert_allclose(relevance, expected)
    other = inspection.attention_relevance(model, images, (predicted + 1) % 4)
    assert not np.allclose(relevance, other)


def test_relevance_does_not_change_the_weights():
    model = build()
    before = model.get_weights()
    inspection.attention_maps(model, images_for(model), "relevance", targets=[0, 1])
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_relevance_is_thread_safe():
    model = build()
    images = images_for(model)
    expected = inspection.attention_relevance(model, images)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = [
            pool.submit(inspection.attention_relevance, model, images),
            pool.submit(inspection.attention_relevance, model, images),
        ]
    for result in results:
        np.testing.assert_allclose(result.result(), expected, atol=1e-6)


def test_relevance_rejects_bad_targets_and_outputs():
    model = build()
    images = images_for(model)
    with pytest.raises(ValueError, match=r"for each of 2 images"):
        inspection.attention_relevance(model, images, [1])
    unpooled = build(classifier="unpooled")
    with pytest.raises(ValueError, match=r"must be \(B, classes\)"):
        inspection.attention_relevance(unpooled, images)
