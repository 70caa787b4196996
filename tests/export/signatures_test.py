"""Tests of the signatures of a SavedModel: their outputs match the model, and they reject bad
input."""

import struct

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import inspection

from ..shared import random_images
from .conftest import FILES, NAMES, SHAPE, model_inputs, probabilities_of


@pytest.fixture(scope="module")
def signatures(exported):
    loaded = tf.saved_model.load(exported[0])
    yield loaded.signatures
    del loaded


def _types(specs):
    return {key: (spec.dtype.name, spec.shape.as_list()) for key, spec in specs.items()}


FILE_INPUT = {"image_bytes": ("string", [None])}
PROBABILITIES = {"probabilities": ("float32", [None, 5])}
TOP_CLASSES = {"top_classes": ("string", [None, 3]), "top_probabilities": ("float32", [None, 3])}
SPECS = {
    "serving_default": (FILE_INPUT, PROBABILITIES | TOP_CLASSES),
    "tensor": ({"images": ("float32", [None, *SHAPE])}, PROBABILITIES),
    "classify": (
        {"inputs": ("string", [None])},
        {"classes": ("string", [None, 3]), "scores": ("float32", [None, 3])},
    ),
    "features": (
        FILE_INPUT,
        {"representation": ("float32", [None, 8]), "patches": ("float32", [None, 2, 3, 8])},
    ),
    "attention": (FILE_INPUT, {"attention": ("float32", [None, *SHAPE[:2]])}),
}


def test_signatures_have_expected_shapes_and_dtypes(signatures):
    specs = {}
    for name, signature in signatures.items():
        inputs = _types(signature.structured_input_signature[1])
        specs[name] = (inputs, _types(signature.structured_outputs))
    assert specs == SPECS


def test_tensor_signature_matches_model(exported, signatures):
    images = random_images((7, *SHAPE))
    outputs = signatures["tensor"](images=images)["probabilities"]
    np.testing.assert_allclose(outputs, probabilities_of(exported[1], images), atol=1e-6)


def test_default_signature_matches_model(exported, signatures):
    outputs = signatures["serving_default"](image_bytes=tf.constant(FILES))
    probabilities = probabilities_of(exported[1], model_inputs(FILES))
    np.testing.assert_allclose(outputs["probabilities"], probabilities, atol=1e-6)
    order = np.argsort(-probabilities, axis=-1)[:, :3]
    top_classes = np.char.decode(outputs["top_classes"].numpy().astype(bytes), "utf-8")
    np.testing.assert_array_equal(top_classes, np.array(NAMES)[order])
    top_probabilities = np.take_along_axis(probabilities, order, -1)
    np.testing.assert_allclose(outputs["top_probabilities"], top_probabilities, atol=1e-6)


def test_classify_matches_default_signature(signatures):
    examples = [tf.train.Example() for _ in FILES]
    for example, file in zip(examples, FILES):
        example.features.feature["image/encoded"].bytes_list.value.append(file)
    inputs = tf.constant([example.SerializeToString() for example in examples])
    outputs = signatures["classify"](inputs=inputs)
    expected = signatures["serving_default"](image_bytes=tf.constant(FILES))
    np.testing.assert_array_equal(outputs["classes"], expected["top_classes"])
    np.testing.assert_allclose(outputs["scores"], expected["top_probabilities"], atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="image/encoded"):
        signatures["classify"](inputs=tf.constant([tf.train.Example().SerializeToString()]))


def test_features_and_attention_match_model(exported, signatures):
    model = exported[1]
    images = model_inputs(FILES)
    outputs = signatures["features"](image_bytes=tf.constant(FILES))
    np.testing.assert_allclose(
        outputs["representation"], keras_vit.features(model, images, tokens="pooled"), atol=1e-5
    )
    patches = keras_vit.features(model, images, tokens="patch", grid=True)
    np.testing.assert_allclose(outputs["patches"], patches, atol=1e-5)
    maps = signatures["attention"](image_bytes=tf.constant(FILES))["attention"]
    np.testing.assert_allclose(maps, inspection.attention_maps(model, images), atol=1e-6)


# A PNG whose header says that it has 300 megapixels.
HUGE_FILE = FILES[0][:16] + struct.pack(">II", 20_000, 15_000) + FILES[0][24:]


# Inputs of the wrong rank are not tested here, because they could abort this process.
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tensor", np.zeros((2, 9, 12, 3)), "not compatible with expected shape"),
        ("tensor", np.zeros((8, *SHAPE)), "1 to 7 images"),
        ("tensor", np.full((1, *SHAPE), np.nan), "must be finite"),
        ("tensor", np.full((1, *SHAPE), 1e38), "output is not finite"),
        ("serving_default", [b"text"], "not an image in a known format"),
        ("serving_default", [FILES[0], FILES[0][:50]], "PNG|image"),
        ("serving_default", [HUGE_FILE], "larger than 20 megapixels"),
        ("serving_default", [], "1 to 7 images"),
    ],
)
def test_signatures_reject_bad_input(signatures, name, values, message):
    (spec,) = signatures[name].structured_input_signature[1].values()
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signatures[name](**{spec.name: tf.constant(values, spec.dtype)})
