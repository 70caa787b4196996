"""Tests of the errors of `features` for models, images and arguments that it cannot use."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit

from ..shared import THREE_LAYERS, random_images

pytestmark = pytest.mark.one_backend
IMAGES = random_images((2, 24, 16, 3))
DATASET = tf.data.Dataset.from_tensor_slices(IMAGES)


def build(**changes):
    return keras_vit.VisionTransformer(**{**THREE_LAYERS, **changes})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": [1, 4]}, "are 0 to 3.*Received: layer=4"),
        ({"layers": -5}, "layer=-5"),
        ({"layers": 1.5}, "layer=1.5"),
        ({"layers": []}, "Received: layers="),
        ({"tokens": "cls"}, "one of class, registers, patch"),
        ({"grid": True}, "`tokens` must be 'patch'"),
        ({"tokens": "pooled", "norm": False}, "norm=False"),
    ],
    ids=str,
)
def test_rejects_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.features(build(), IMAGES, **arguments)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES[:, :16], r"\(B, 24, 16, 3\).*of shape \(2, 16, 16, 3\)"),
        (IMAGES[0, 0], r"of shape \(16, 3\)"),
        (np.zeros((1, 24, 16, 3), "uint8"), "dtype=uint8"),
        (DATASET.take(0), "empty dataset"),
        (DATASET.map(lambda image: image[:8]), "of shape"),
    ],
    ids=["height", "rank", "dtype", "empty dataset", "dataset of another height"],
)
def test_rejects_bad_images(images, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.features(build(), images)


@pytest.mark.parametrize(
    ("classifier", "tokens"),
    [("token", "registers"), ("gap", "class"), ("token_unpooled", "pooled")],
)
def test_rejects_tokens_that_the_model_lacks(classifier, tokens):
    with pytest.raises(ValueError, match=f"lacks such tokens.*{tokens}"):
        keras_vit.features(build(classifier=classifier), IMAGES, tokens=tokens)


def model_of_two():
    inputs = keras.Input((24, 16, 3))
    return keras.Model(inputs, [build()(inputs), build(name="other")(inputs)])


def model_that_calls_one_twice():
    model = build()
    inputs = keras.Input((24, 16, 3))
    inner = keras.Sequential([keras.Input((24, 16, 3)), model])
    return keras.Model(inputs, model(inputs) + inner(inputs))


@pytest.mark.parametrize(
    ("build_model", "message"),
    [
        (lambda: keras.models.clone_model(build()), "no Vision Transformer. A clone"),
        (model_of_two, "more than one Vision Transformer"),
        (model_that_calls_one_twice, "must call its Vision Transformer once"),
    ],
    ids=["clone", "two", "two calls"],
)
def test_rejects_models_without_a_single_vision_transformer(build_model, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.features(build_model(), IMAGES)
