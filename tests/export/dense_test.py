"""Tests of exports of models that predict pixels."""

import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import export
from keras_vit.export.comparison import Reference, compare
from keras_vit.models import DensePredictionTransformer, LinearSegmenter
from keras_vit.models.resizing import resize_bilinear

from ..shared import SIZES, random_images, randomize

SHAPE = (16, 24, 3)
DPT = {"features": 8, "level_channels": (4, 4, 4, 4), "levels": (1, 1, 1, 1)}
IMAGES = random_images((2, *SHAPE))


def segmenter():
    model = randomize(LinearSegmenter(**SIZES, input_shape=SHAPE, classes=3), 2.0)
    # A variance must not be negative.
    (variance,) = [weight for weight in model.weights if "moving_variance" in weight.path]
    variance.assign(np.ones(8))
    return model


def test_masks_are_the_most_probable_classes(tmp_path):
    model = segmenter()
    path = export.saved_model(model, tmp_path, class_names="abc")
    signatures = tf.saved_model.load(path).signatures
    outputs = signatures["tensor"](images=IMAGES)
    logits = np.asarray(resize_bilinear(model(IMAGES), SHAPE[:2]))
    assert outputs["masks"].dtype == tf.uint8
    assert len(np.unique(outputs["masks"])) > 1
    np.testing.assert_array_equal(outputs["masks"], logits.argmax(-1))
    confidence = np.asarray(keras.ops.softmax(logits)).max(-1)
    np.testing.assert_allclose(outputs["confidence"], confidence, atol=1e-5)

    pixels = np.random.default_rng(1).integers(0, 256, SHAPE).astype("uint8")
    outputs = signatures["serving_default"](image_bytes=tf.io.encode_png(pixels)[None])
    images = keras_vit.preprocess_input(pixels[None], model)
    np.testing.assert_array_equal(outputs["masks"], signatures["tensor"](images=images)["masks"])

    np.testing.assert_allclose(export.load(path)(IMAGES), model(IMAGES), atol=1e-6)
    assert "predicts for each pixel" in Path(path, "README.md").read_text()


def test_depths_are_served(tmp_path):
    model = DensePredictionTransformer(**SIZES, **DPT, input_shape=SHAPE, predicts="depth")
    randomize(model, 0.5)
    path = export.saved_model(model, tmp_path)
    expected = resize_bilinear(np.asarray(model(IMAGES))[..., None], SHAPE[:2])[..., 0]
    largest = float(np.max(expected))
    assert largest > 0
    depths = tf.saved_model.load(path).signatures["tensor"](images=IMAGES)["depths"]
    np.testing.assert_allclose(depths, expected, atol=1e-5 * largest)
    assert " classes" not in Path(path, "README.md").read_text()
    assert Path(path, "assets/labels.txt").read_text() == ""


@pytest.mark.parametrize(("predicts", "same"), [("segmentation", 0.5), ("depth", None)])
def test_report_compares_classes_of_pixels_but_not_depths(predicts, same):
    model = types.SimpleNamespace(predicts=predicts, layers=[], count_params=lambda: 1)
    # Two images of four pixels. In `outputs`, half of the pixels of each image have another class.
    expected = np.zeros((2, 4, 1, 2), "float32")
    expected[..., 0] = 1.0
    outputs = expected.copy()
    outputs[:, 2:] = outputs[:, 2:, :, ::-1]
    report = compare("path", 1, model, Reference(IMAGES, expected, "2 images"), outputs)
    assert report.same_class == same
    assert ("same class for 50 %" in str(report)) == (same is not None)
    assert report.cosine == pytest.approx(0.5)  # of all pixels of an image


def test_rejects_other_signatures():
    with pytest.raises(ValueError, match="has the signatures serving_default and tensor"):
        export.check(segmenter(), signatures=("features",))
