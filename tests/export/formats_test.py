"""Tests of LiteRT and ONNX exports."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import export
from keras_vit.export.comparison import compare, example_images, reference

from ..shared import random_images, to_numpy
from .conftest import SHAPE, WIDE, needs_onnx, tiny_model


def session_of(path):
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("policy", "exact_gelu", "tolerance"),
    [("float32", True, 1e-5), ("mixed_bfloat16", False, 0.1)],
)
def test_litert_logits_match(policy, exact_gelu, tolerance, tmp_path):
    keras.config.set_dtype_policy(policy)
    report = export.litert(tiny_model(exact_gelu=exact_gelu), tmp_path / "model.tflite")
    assert report.largest_difference < tolerance
    assert report.size_bytes == (tmp_path / "model.tflite").stat().st_size


def test_litert_int8_is_smaller_and_close(tmp_path):
    model = tiny_model(**WIDE)
    whole = export.litert(model, tmp_path / "whole.tflite")
    small = export.litert(model, tmp_path / "small.tflite", quantization="int8")
    assert small.size_bytes < 0.7 * whole.size_bytes
    assert 1e-5 < small.largest_difference < 0.1 * small.logits_range


@needs_onnx
def test_onnx_logits_match(tmp_path):
    model = tiny_model(exact_gelu=True)
    report = export.onnx(model, tmp_path / "model.onnx")
    assert report.largest_difference < 1e-5
    assert report.size_bytes == (tmp_path / "model.onnx").stat().st_size
    images = example_images(SHAPE, 1)  # another batch size than in the report
    (outputs,) = session_of(tmp_path / "model.onnx").run(["logits"], {"images": images})
    np.testing.assert_allclose(outputs, model(images), atol=1e-5)


@needs_onnx
def test_onnx_folds_constant_expressions(tmp_path):
    import onnx

    model = tiny_model(input_shape=(32, 32, 3), patch_size=1, stem="resnet", resnet_blocks=(1,))
    report = export.onnx(model, tmp_path / "model.onnx")
    assert report.largest_difference < 1e-5 * report.logits_range
    file = onnx.load(tmp_path / "model.onnx")
    assert [entry.domain for entry in file.opset_import] == [""]  # only standard operators
    graph = file.graph
    assert [value.name for value in graph.input] == ["images"]
    weights = {tensor.name for tensor in graph.initializer}
    read = {name for node in graph.node for name in node.input}
    assert weights <= read
    for node in graph.node:
        assert not weights.issuperset(node.input), node.name


@pytest.fixture(scope="module")
def int8_model(tmp_path_factory):
    """Returns the path of an ONNX file in int8 of a model with two layers, and its report."""
    path = tmp_path_factory.mktemp("int8") / "model.onnx"
    model = tiny_model(hidden_size=64, mlp_dim=128, num_layers=2)
    images = random_images((20, *SHAPE), seed=1)
    return path, export.onnx(model, path, quantization="int8", images=images)


def _quantized_products(graph):
    """Returns all products of an ONNX graph, and those with a quantized input."""
    producers = _producers(graph)
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm", "Conv")]
    quantized = [
        node for node in products if producers[node.input[0]].op_type == "DequantizeLinear"
    ]
    return products, quantized


def _producers(graph):
    return {name: node for node in graph.node for name in node.output}


@needs_onnx
def test_onnx_int8_is_close(int8_model):
    _, report = int8_model
    assert report.images == "the 20 given images"
    assert 1e-5 < report.largest_difference < 0.1 * report.logits_range
    assert 0.99 < report.cosine < 1
    assert report.same_class > 0.9


@needs_onnx
def test_onnx_int8_quantizes_only_products_with_kernels(int8_model):
    import onnx

    graph = onnx.load(int8_model[0]).graph
    products, quantized = _quantized_products(graph)
    # Each of the 2 layers has two products without kernels: query by key, and attention scores by
    # value.
    assert len(products) - len(quantized) == 2 * 2
    stored = {tensor.name: tensor for tensor in graph.initializer}
    producers = _producers(graph)
    for node in quantized:
        kernel, scales, _ = producers[node.input[1]].input
        assert stored[kernel].data_type == onnx.TensorProto.INT8
        # Each channel has its own scale.
        assert stored[scales].dims[0] in stored[kernel].dims
    quantized_inputs = {name for node in quantized for name in node.input}
    for node in graph.node:
        if node not in products and node.op_type != "QuantizeLinear":
            assert not quantized_inputs & set(node.input), node.name


@needs_onnx
def test_onnxruntime_computes_quantized_products_in_int8(int8_model, tmp_path):
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(int8_model[0], options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx").graph
    operations = [node.op_type for node in optimized.node]
    _, quantized = _quantized_products(onnx.load(int8_model[0]).graph)
    assert operations.count("QGemm") == len(quantized)
    # The kernels are not dequantized.
    assert "DequantizeLinear" not in operations


@needs_onnx
def test_onnx_int8_products_fit_16_bits(tmp_path):
    import onnx

    # The head adds up the largest activation times the largest weight of either sign.
    images = keras.Input(SHAPE)
    head = keras.layers.Dense(4, use_bias=False, name="head")
    model = keras.Model(images, head(keras.layers.Flatten()(images)))
    pixels = int(np.prod(SHAPE))
    head.kernel.assign(np.tile([1.0, -1.0, 0.5, 0.0], (pixels, 1)))
    extreme = np.ones((1, *SHAPE), "float32")
    given = np.concatenate([extreme, np.zeros_like(extreme)])
    path = tmp_path / "model.onnx"
    report = export.onnx(model, path, quantization="int8", images=given)
    assert report.largest_difference < 1e-3 * pixels
    (outputs,) = session_of(path).run(["logits"], {"images": extreme})
    np.testing.assert_allclose(outputs[0], [pixels, -pixels, 0.5 * pixels, 0], rtol=1e-3)
    # Without VNNI, processors add two products in 16 bits: 2 * 255 * 64 fits, 2 * 255 * 127 does
    # not.
    largest = max(
        np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max()
        for tensor in onnx.load(path).graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8
    )
    assert 63 <= largest <= 64


def test_feature_model_is_exported(write_file):
    report = write_file(keras_vit.FeatureModel(tiny_model(), tokens="pooled"))
    assert report.largest_difference < 1e-5


def test_rejects_models_with_several_outputs(tmp_path):
    several = keras_vit.FeatureModel(tiny_model(num_layers=2), [1, 2])
    with pytest.raises(ValueError, match="must have one output"):
        export.litert(several, tmp_path / "model.tflite")


@pytest.mark.parametrize(
    ("write", "file", "options", "message"),
    [
        (export.litert, "a.lite", {}, 'must end in ".tflite"'),
        (export.litert, "a.tflite", {"quantization": "int4"}, "quantization='int4'"),
        (export.litert, "a.tflite", {"images": np.zeros((0, *SHAPE))}, "shape=.0, 8, 12, 3"),
        (export.onnx, "a.onnx", {"quantization": "int8"}, "to calibrate int8"),
    ],
)
def test_rejects_bad_arguments_without_writing(write, file, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write(tiny_model(), tmp_path / file, **options)
    assert list(tmp_path.iterdir()) == []


def test_other_backends_are_rejected(tmp_path, monkeypatch):
    model = tiny_model()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        export.litert(model, tmp_path / "a.tflite")


def test_compare_rejects_invalid_logits():
    model = tiny_model()
    logits = to_numpy(model(example_images(SHAPE)))
    report = compare("x", 1, model, reference(model), logits)
    assert report.largest_difference == 0
    assert report.cosine == pytest.approx(1)
    for invalid in (logits[:3], np.full_like(logits, np.nan)):
        with pytest.raises(ValueError, match="finite logits"):
            compare("x", 1, model, reference(model), invalid)
