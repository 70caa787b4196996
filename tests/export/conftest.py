"""Fixtures and helpers of the export tests."""

import importlib.util
import io
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit import export

from ..shared import SIZES, randomize

SHAPE = (8, 12, 3)
NAMES = ("ant", "Bär", "cow, or cattle", "dog", "emu")
# With this size, the kernels make up most of an exported file.
WIDE = {"hidden_size": 32, "mlp_dim": 64}

needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime"))),
    reason="tf2onnx or onnxruntime is not installed",
)


def tiny_model(**changes):
    """Returns a tiny model. Its random weights are large enough for the outputs to differ between
    images."""
    arguments = {**SIZES, "input_shape": SHAPE, "classes": len(NAMES)}
    model = keras_vit.VisionTransformer(**arguments | changes)
    return randomize(model, 0.5)


def image_file(height, width, kind="PNG", seed=0):
    """Returns the bytes of an image file of smooth noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).resize((width, height), Image.BICUBIC).save(stream, kind)
    return stream.getvalue()


# Image files whose sizes differ from the model's input, except the last one.
FILES = [image_file(9, 14, seed=1), image_file(40, 21, "JPEG", seed=2), image_file(8, 12, seed=3)]


def model_inputs(files):
    """Returns the inputs of a model for image files."""
    images = [tf.image.resize(tf.io.decode_image(file, channels=3), SHAPE[:2]) for file in files]
    return (tf.stack(images) - 127.5) / 127.5


def probabilities_of(model, images):
    """Returns the softmax of a model's logits."""
    return keras.ops.convert_to_numpy(keras.ops.softmax(model(images)))


def serve(path, images):
    """Returns the probabilities that the signature `tensor` of an export returns."""
    return tf.saved_model.load(path).signatures["tensor"](images=images)["probabilities"]


@pytest.fixture(params=["tflite", pytest.param("onnx", marks=needs_onnx)])
def write_file(request, tmp_path):
    """Returns a function that exports a model to a LiteRT or ONNX file and returns the report."""
    write = {"tflite": export.litert, "onnx": export.onnx}[request.param]
    return lambda model: write(model, tmp_path / f"model.{request.param}")


@pytest.fixture
def skip_verification(monkeypatch):
    """Skips the verification of the export, which would run in a child process."""
    # `export.saved_model` is the function of this module.
    module = sys.modules["keras_vit.export.saved_model"]
    monkeypatch.setattr(module, "verify", lambda *_: {})


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Returns `(path, model)` of an export with every signature."""
    keras.config.set_dtype_policy("float32")
    model = tiny_model()
    path = export.saved_model(
        model,
        tmp_path_factory.mktemp("served") / "animals",
        class_names=NAMES,
        signatures=export.SIGNATURES,
        top=3,
        max_batch_size=7,
        max_megapixels=20,
        recipe={"optimizer": {"name": "adamw"}},
        metrics={"test/accuracy": 0.5},
    )
    return path, model
