"""Tests of exports of models that predict pixels."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import export
from keras_vit.models import DensePredictionTransformer, LinearSegmenter
from keras_vit.models.resizing import resize_bilinear

from ..shared import SIZES, randomize

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exports require the TensorFlow backend"
)
SHAPE = (16, 24, 3)
DPT = {"features": 8, "level_channels": (4, 4, 4, 4), "levels": (1, 1, 1, 1)}


def segmenter():
    model = randomize(LinearSegmenter(**SIZES, input_shape=SHAPE, classes=3), 2.0)
    next(w for w in model.weights if "moving_variance" in w.path).assign(np.ones(8))
    return model


def depth_model():
    model = DensePredictionTransformer(**SIZES, **DPT, input_shape=SHAPE, predicts="depth")
    return randomize(model, 0.5)


@pytest.fixture
def images():
    return np.random.default_rng(0).uniform(-1, 1, (2, *SHAPE)).astype("float32")


def signatures_of(path):
    return tf.saved_model.load(path).signatures


def test_masks_are_the_most_probable_classes(images, tmp_path):
    model = segmenter()
    path = export.saved_model(model, tmp_path, class_names="abc")
    served = signatures_of(path)
    outputs = served["tensor"](images=images)
    logits = np.asarray(resize_bilinear(model(images), SHAPE[:2]))
    assert outputs["masks"].dtype == tf.uint8
    np.testing.assert_array_equal(outputs["masks"], logits.argmax(-1))
    probabilities = np.asarray(keras.ops.softmax(logits)).max(-1)
    np.testing.assert_allclose(outputs["confidence"], probabilities, atol=1e-5)
    assert len(np.unique(outputs["masks"])) > 1
    # From a file.
    pixels = np.random.default_rng(1).integers(0, 256, (16, 24, 3)).astype("uint8")
    file = tf.io.encode_png(pixels)
    from_file = served["serving_default"](image_bytes=file[None])["masks"]
    prepared = keras_vit.preprocess_input(pixels[None], model)
    np.testing.assert_array_equal(from_file, served["tensor"](images=prepared)["masks"])
    assert "predicts for each pixel" in (tmp_path / "1/README.md").read_text()
    again = export.load(path)
    np.testing.assert_allclose(again(images), model(images), atol=1e-6)


@pytest.mark.full
def test_depths_are_served(images, tmp_path):
    model = depth_model()
    served = signatures_of(export.saved_model(model, tmp_path))
    expected = resize_bilinear(np.asarray(model(images))[..., None], SHAPE[:2])[..., 0]
    depths = served["tensor"](images=images)["depths"]
    np.testing.assert_allclose(depths, expected, atol=1e-5 * float(np.max(expected)))
    assert float(np.max(expected)) > 0


def test_other_signatures_and_numbers_of_names_are_refused(tmp_path):
    for arguments, message in (
        ({"signatures": ("features",)}, "has the signatures serving_default and tensor"),
        ({"class_names": "ab"}, "must be 3 names"),
    ):
        with pytest.raises(ValueError, match=message):
            export.saved_model(segmenter(), tmp_path, **arguments)
