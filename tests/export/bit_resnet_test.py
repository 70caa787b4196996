"""Tests of exported BiT ResNets."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import export
from keras_vit.layers.preactivation_resnet import PreActivationResNet

from ..shared import random_images, randomize_head
from .conftest import needs_onnx, probabilities_of

SHAPE = (32, 48, 3)
IMAGES = random_images((3, *SHAPE), seed=1)


@pytest.fixture(scope="module")
def resnet():
    """Returns a small BiT ResNet with a random head."""
    keras.config.set_dtype_policy("float32")
    return randomize_head(keras_vit.BiTResNet(depth=26, input_shape=SHAPE, classes=5))


def test_export_matches_model(resnet, tmp_path):
    path = export.saved_model(resnet, tmp_path, class_names="abcde")
    signatures = tf.saved_model.load(path).signatures
    assert set(signatures) == {"serving_default", "tensor"}
    outputs = signatures["tensor"](images=IMAGES)
    expected = probabilities_of(resnet, IMAGES)
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
    np.testing.assert_array_equal(export.load(path)(IMAGES), resnet(IMAGES))
    assert export.load_card(path)["architecture"] == {
        "description": "BiTResNet (depth=26, width_factor=1, version=2)",
        "parameters": resnet.count_params(),
        "image_shape": list(SHAPE),
        "classes": 5,
        "depth": 26,
        "width_factor": 1,
        "version": 2,
    }


def test_rejects_vision_transformer_signatures(resnet):
    with pytest.raises(ValueError, match="has no Vision Transformer"):
        export.check(resnet, signatures=["features"])


@pytest.mark.slow
def test_other_formats_match_logits(resnet, write_file):
    report = write_file(resnet)
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
