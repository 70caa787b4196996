"""Tests of the errors of `features` for models, images and arguments that it cannot use."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit

from ..shared import THREE_LAYERS, random_images

pytestmark = pytest.mark.one_backend
IMAGES = random_images((2, 24, 16, 3))


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
        ({"tokens": "registers"}, "lacks such tokens.*registers"),
        ({"grid": True}, "`tokens` must be 'patch'"),
        ({"tokens": "pooled", "norm": False}, "norm=False"),
    ],
    ids=str,
)
def test_rejects_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.features(build(), IMAGES, **arguments)


DATASET = tf.data.Dataset.from_tensor_slices(IMAGES)


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
    ("classifier", "tokens", "message"),
    [
        ("gap", "class", "lacks such tokens.*class"),
        ("token_unpooled", "pooled", "lacks such tokens.*pooled"),
    ],
)
def test_rejects_tokens_that_the_model_lacks(classifier, tokens, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.features(build(classifier=classifier), IMAGES, tokens=tokens)


def test_rejects_models_without_a_vision_transformer():
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="has no Vision Transformer"):
        keras_vit.features(dense, IMAGES)


def test_rejects_models_with_two_vision_transformers():
    inputs = keras.Input((24, 16, 3))
    both = keras.Model(inputs, [build()(inputs), build(name="other")(inputs)])
    with pytest.raises(ValueError, match="has more than one Vision Transformer"):
        keras_vit.features(both, IMAGES)


def test_rejects_models_that_call_a_vision_transformer_twice():
    model = build()
    inputs = keras.Input((24, 16, 3))
    siamese = keras.Sequential([keras.Input((24, 16, 3)), model])
    twice = keras.Model(inputs, model(inputs) + siamese(inputs))
    with pytest.raises(ValueError, match="must call its Vision Transformer once"):
        keras_vit.features(twice, IMAGES)


def _submodel(model):
    return keras.Model(model.inputs, model.get_layer("encoderblock_1").output)


@pytest.mark.parametrize("copy_layers", [keras.models.clone_model, _submodel])
def test_rejects_clones_and_submodels(copy_layers):
    with pytest.raises(ValueError, match="only the layers of one"):
        keras_vit.features(copy_layers(build()), IMAGES)
