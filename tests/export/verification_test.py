"""Tests of the verification of written SavedModels."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import export
from keras_vit.export import verification

from .conftest import tiny_model


def test_wrong_output_is_not_published(tmp_path, monkeypatch):
    saved_model = sys.modules["keras_vit.export.saved_model"]  # not the function of this name
    inference_copy = saved_model.inference_copy

    def wrong_copy(*arguments):
        copy = inference_copy(*arguments)
        copy.weights[-1].assign(copy.weights[-1] + np.arange(5.0))
        return copy

    monkeypatch.setattr(saved_model, "inference_copy", wrong_copy)
    message = "tensor: probabilities differs by .*See .*partial-"
    with pytest.raises(export.SelfTestError, match=message):
        export.saved_model(tiny_model(), tmp_path, signatures=("tensor",))
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("partial-")
    assert (kept / "saved_model.pb").exists()


@pytest.fixture
def verify_probabilities(tmp_path):
    """Returns random logits of 21,843 classes, and a function that verifies a SavedModel of their
    softmax against given probabilities."""
    softmax = tf.function(lambda images: {"probabilities": tf.nn.softmax(images)})
    spec = tf.TensorSpec((None, 21_843), tf.float32, "images")
    signatures = {"tensor": softmax.get_concrete_function(spec)}
    tf.saved_model.save(tf.Module(), tmp_path / "served", signatures)
    logits = tf.constant(np.random.default_rng(0).uniform(-0.5, 0.5, (2, 21_843)), tf.float32)
    case = tmp_path / "cases/tensor"
    case.mkdir(parents=True)

    def verify(probabilities):
        for name, tensor in (("inputs", logits), ("probabilities", probabilities)):
            tf.io.write_file(str(case / name), tf.io.serialize_tensor(tensor))
        verification._main(str(tmp_path / "served"), str(case.parent), 1e-4)

    return logits, verify


def test_verification_compares_small_probabilities(verify_probabilities):
    logits, verify = verify_probabilities
    verify(tf.nn.softmax(logits + 1e-5 * logits**2))  # rounding errors
    uniform = tf.fill(logits.shape, 1 / 21_843)
    for wrong in (uniform, tf.zeros_like(logits), 1.01 * tf.nn.softmax(logits)):
        with pytest.raises(SystemExit, match="probabilities differs"):
            verify(wrong)
