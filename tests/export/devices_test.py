"""Tests of the forms of layers for CPUs."""

import platform
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import export
from keras_vit.export import devices
from keras_vit.export.graph import inference_copy
from keras_vit.layers.attention import MultiHeadAttention

from ..shared import images_for, randomize_around_unit_norms
from .conftest import tiny_model


def _graph_of(model, dtype="float32"):
    spec = tf.TensorSpec((None, *model.input_shape[1:]), dtype)
    function = tf.function(lambda images: model(images, training=False), autograph=False)
    return function.get_concrete_function(spec)


def _operations_of(graph):
    return {node.op for node in graph.graph.as_graph_def().node}


def _model_of(*layers, dtype="float32"):
    """Returns a model of tokens with the given layers."""
    last = keras.layers.Activation("linear")
    return keras.Sequential([keras.Input((4, 8), dtype=dtype), *layers, last])


@keras.saving.register_keras_serializable(package="tests")
class DoubledNorm(keras.layers.LayerNormalization):
    def call(self, inputs):
        return 2 * super().call(inputs)


@keras.saving.register_keras_serializable(package="tests")
class SharpAttention(MultiHeadAttention):
    def softmax(self, scores, mask, dtype):
        return super().softmax(3 * scores, mask, dtype)


@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-5), ("bfloat16", 0.05)])
def test_form_for_cpus_has_the_same_outputs(precision, tolerance):
    model = tiny_model(num_layers=2, qk_norm=True, pre_norm=True, classifier="map")
    randomize_around_unit_norms(model, 0.1)
    images = images_for(model)
    expected = model(images).numpy()
    graph = _graph_of(inference_copy(model, precision, "cpu"))
    assert "FusedBatchNormV3" in _operations_of(graph)
    difference = np.abs(graph(tf.constant(images)) - expected).max()
    assert difference < tolerance * np.ptp(expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_softmax_for_cpus_has_the_same_scores(dtype):
    attention = MultiHeadAttention(num_heads=2, dtype="bfloat16")
    scores = keras.random.normal((2, 2, 3, 5), stddev=4.0, dtype="bfloat16")
    mask = np.ones((2, 1, 1, 5), "bool")
    mask[0, ..., 3:] = False
    mask[1] = False  # only padding
    for shown in (None, tf.constant(mask)):
        expected = tf.cast(attention.softmax(scores, shown, dtype), "float32")
        result = devices._softmax(scores, shown, dtype)
        assert result.dtype == dtype
        tolerance = 1e-6 if dtype == "float32" else 2**-8
        np.testing.assert_allclose(tf.cast(result, "float32"), expected, rtol=tolerance)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN is off")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_tensorflow_fuses_the_form_for_cpus(precision, tmp_path):
    model = tiny_model()
    graph = _graph_of(inference_copy(model, precision, "cpu"))
    images = tf.constant(images_for(model))
    graph(images)
    with tf.profiler.experimental.Profile(str(tmp_path)):
        graph(images).numpy()
    (profile,) = tmp_path.rglob("*.xplane.pb")
    content = profile.read_bytes()
    assert b"_MklLayerNorm" in content and b"FusedBatchNorm" not in content
    assert b"_MklSoftmax" in content


def test_form_for_cpus_keeps_a_small_epsilon():
    # The variance of the tokens is near 1e-6, so a larger epsilon would change the outputs.
    model = _model_of(keras.layers.LayerNormalization(epsilon=1e-6, center=False))
    tokens = np.random.default_rng(0).normal(1, 1e-3, (2, 4, 8)).astype("float32")
    deviations = tokens - tokens.mean(-1, keepdims=True)
    expected = deviations / np.sqrt(tokens.var(-1, keepdims=True) + 1e-6)
    graph = _graph_of(inference_copy(model, device="cpu"))
    assert "FusedBatchNormV3" in _operations_of(graph)
    np.testing.assert_allclose(graph(tf.constant(tokens)), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("norm", "options", "dtype"),
    [
        (keras.layers.LayerNormalization, {"axis": 1}, "float32"),
        (DoubledNorm, {}, "float32"),
        (keras.layers.LayerNormalization, {}, "int32"),
    ],
)
def test_other_norms_keep_their_form(norm, options, dtype):
    model = _model_of(norm(**options), dtype=dtype)
    tokens = np.random.default_rng(0).normal(0, 50, (2, 4, 8)).astype(dtype)
    graph = _graph_of(inference_copy(model, device="cpu"), dtype)
    assert "FusedBatchNormV3" not in _operations_of(graph)
    np.testing.assert_allclose(graph(tf.constant(tokens)), model(tokens), rtol=1e-5, atol=1e-6)


def test_accelerator_of_the_backend_counts(monkeypatch):
    # As on JAX, which hides its devices from TensorFlow.
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["gpu:0", "gpu:1"])
    assert devices.found_devices() == ["cpu", "gpu"]
    assert devices.chosen_device(None) == "any"


def test_attention_with_its_own_softmax_keeps_it():
    model = _model_of(
        SharpAttention(num_heads=2, name="own"), MultiHeadAttention(num_heads=2, name="plain")
    )
    copy = inference_copy(model, "bfloat16", "cpu")
    assert "softmax" not in vars(copy.get_layer("own"))
    assert "softmax" in vars(copy.get_layer("plain"))


def test_device_is_recorded(tmp_path, skip_verification):
    # The tests run without an accelerator, so the default is "cpu".
    for device, recorded in {None: "cpu", "any": "any"}.items():
        path = export.saved_model(
            tiny_model(), tmp_path / recorded, device=device, signatures=["tensor"]
        )
        assert export.load_card(path)["device"] == recorded
        graph = Path(path, "saved_model.pb").read_bytes()
        assert (b"FusedBatchNormV3" in graph) == (recorded == "cpu")
