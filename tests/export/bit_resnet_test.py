"""Tests of exported BiT ResNets."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import export
from keras_vit.layers.preactivation_resnet import PreActivationResNet

from ..shared import random_images
from .conftest import formats, needs_onnx

SHAPE = (32, 48, 3)
SIGNATURES = ("serving_default", "tensor")
IMAGES = random_images((3, *SHAPE), seed=1)


@pytest.fixture(scope="module")
def resnet():
    """Returns a small BiT ResNet with a random head."""
    keras.config.set_dtype_policy("float32")
    model = keras_vit.BiTResNet(depth=26, input_shape=SHAPE, classes=5)
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(0).normal(scale=0.1, size=head.kernel.shape))
    return model


@pytest.fixture(scope="module")
def exported(resnet, tmp_path_factory):
    folder = tmp_path_factory.mktemp("resnet")
    return export.saved_model(resnet, folder, class_names="abcde", signatures=SIGNATURES)


@pytest.mark.parametrize("name", ["features", "attention"])
def test_rejects_vision_transformer_signatures(resnet, tmp_path, name):
    with pytest.raises(ValueError, match="has no Vision Transformer"):
        export.saved_model(resnet, tmp_path, class_names="abcde", signatures=[name])
    assert not list(tmp_path.iterdir())


def test_signatures_match_model(resnet, exported):
    signatures = tf.saved_model.load(exported).signatures
    outputs = signatures["tensor"](images=tf.constant(IMAGES))
    np.testing.assert_allclose(
        outputs["probabilities"], keras.ops.softmax(resnet(IMAGES)), atol=1e-5
    )
    file = Path(exported, "assets.extra/example.jpg").read_bytes()
    image = tf.image.resize(tf.io.decode_jpeg(file, channels=3), SHAPE[:2]) / 127.5 - 1.0
    outputs = signatures["serving_default"](image_bytes=tf.constant([file]))
    np.testing.assert_allclose(
        outputs["probabilities"], keras.ops.softmax(resnet(image[None])), atol=1e-4
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="not compatible with expected shape"):
        signatures["tensor"](images=tf.zeros((1, 32, 32, 3)))


def test_card_and_readme_describe_model(resnet, exported):
    card = json.loads(Path(exported, "assets.extra/model_card.json").read_text(encoding="utf-8"))
    assert card["architecture"] == {
        "description": "BiTResNet (depth=26, width_factor=1, version=2)",
        "parameters": resnet.count_params(),
        "image_shape": list(SHAPE),
        "classes": 5,
        "depth": 26,
        "width_factor": 1,
        "version": 2,
    }
    assert export.load_card(exported) == card
    readme = Path(exported, "README.md").read_text(encoding="utf-8")
    assert "\nBiTResNet (depth=26, width_factor=1, version=2).\n" in readme


def test_load_round_trips(resnet, exported):
    loaded = export.load(exported)
    for loaded_weight, weight in zip(loaded.weights, resnet.weights, strict=True):
        np.testing.assert_array_equal(loaded_weight, weight)
    assert loaded.trainable
    assert len(loaded.trainable_weights) == len(resnet.trainable_weights)
    assert keras_vit.preprocessing_of(loaded) == keras_vit.preprocessing_of(resnet)
    np.testing.assert_array_equal(loaded(IMAGES), resnet(IMAGES))


@pytest.mark.slow
@formats
def test_other_formats_match_logits(format_name, ending, resnet, tmp_path):
    report = getattr(export, format_name)(resnet, tmp_path / f"model.{ending}")
    assert report.largest_difference < 1e-4 * report.logits_range
    assert report.same_class == 1


@needs_onnx
@pytest.mark.parametrize("pool_padding", ["zeros", "minus_infinity"])
def test_onnx_keeps_pool_padding(pool_padding, tmp_path):
    images = keras.Input((8, 10, 3))
    # This is a stem without residual units.
    features = PreActivationResNet(width=32, pool_padding=pool_padding)(images)
    model = keras.Model(images, keras.layers.Flatten()(features))
    assert export.onnx(model, tmp_path / "model.onnx").largest_difference < 1e-4
