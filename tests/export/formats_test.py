"""Tests of LiteRT and ONNX exports, and of the choice between formats."""

import dataclasses
import importlib.util
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import export
from keras_vit.export import choosing
from keras_vit.export.comparison import ExportReport, compare, example_images, reference

from ..shared import random_images
from .conftest import SHAPE, tiny_model

WIDE = {"hidden_size": 32, "mlp_dim": 64}  # kernels make up most of the file at this size
needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime"))),
    reason="tf2onnx or onnxruntime is not installed",
)


def logits_of(model):
    images = example_images(SHAPE)
    return images, keras.ops.convert_to_numpy(keras.ops.cast(model(images), "float32"))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_litert_logits_match(policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    report = export.litert(tiny_model(exact_gelu=policy == "float32"), tmp_path / "model.tflite")
    assert report.largest_difference < (1e-5 if policy == "float32" else 0.1)
    assert report.size_bytes == (tmp_path / "model.tflite").stat().st_size
    assert (tmp_path / "model.tflite").read_bytes()[4:8] == b"TFL3"
    assert len(list(tmp_path.iterdir())) == 1


def test_litert_int8_is_smaller_and_close(tmp_path):
    model = tiny_model(**WIDE)
    whole = export.litert(model, tmp_path / "whole.tflite")
    small = export.litert(model, tmp_path / "small.tflite", quantization="int8")
    assert small.size_bytes < 0.7 * whole.size_bytes
    assert 1e-5 < small.largest_difference < 0.1 * small.logits_range
    one = export.litert(model, tmp_path / "one.tflite", images=example_images(SHAPE, 1))
    assert one.images == "the given image"
    assert one.largest_difference < 1e-5


@needs_onnx
@pytest.mark.parametrize("exact_gelu", [False, True])
def test_onnx_logits_match(exact_gelu, tmp_path):
    import onnxruntime

    model = tiny_model(exact_gelu=exact_gelu)
    report = export.onnx(model, tmp_path / "model.onnx")
    assert report.largest_difference < 1e-5
    assert report.size_bytes == (tmp_path / "model.onnx").stat().st_size
    images, logits = logits_of(model)
    session = onnxruntime.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    for batch in (1, 5):
        (outputs,) = session.run(["logits"], {"images": images[:batch]})
        np.testing.assert_allclose(outputs, logits[:batch], atol=1e-5)


@needs_onnx
def test_onnx_folds_constant_expressions(tmp_path):
    import onnx

    model = keras_vit.VisionTransformer(
        input_shape=(32, 32, 3),
        classes=5,
        stem="resnet",
        resnet_blocks=(1,),
        patch_size=1,
        num_layers=1,
        hidden_size=16,
        mlp_dim=16,
        num_heads=2,
    )
    assert export.onnx(model, tmp_path / "model.onnx").largest_difference < 1e-5
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [value.name for value in graph.input] == ["images"]
    weights = {tensor.name for tensor in graph.initializer}
    read = {name for node in graph.node for name in node.input}
    assert weights <= read
    assert not any(weights.issuperset(node.input) for node in graph.node)


@needs_onnx
def test_onnx_int8_quantizes_only_products_with_kernels(tmp_path):
    import onnx
    import onnxruntime

    model = tiny_model(hidden_size=64, mlp_dim=128, num_layers=2)
    images = random_images((20, *SHAPE), seed=1)
    report = export.onnx(model, tmp_path / "model.onnx", quantization="int8", images=images)
    assert 1e-5 < report.largest_difference < 0.1 * report.logits_range
    assert 0.99 < report.cosine < 1
    assert report.same_class > 0.9
    assert report.images == "the 20 given images"
    graph = onnx.load(tmp_path / "model.onnx").graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm", "Conv")]
    quantized_nodes = [
        node for node in products if producers[node.input[0]].op_type == "DequantizeLinear"
    ]
    # Each of the 2 layers has two products without kernels: query by key, and attention scores by
    # value.
    assert len(products) - len(quantized_nodes) == 2 * 2
    for node in quantized_nodes:
        kernel, scales, _ = producers[node.input[1]].input
        assert stored[kernel].data_type == onnx.TensorProto.INT8
        # One scale per channel.
        assert stored[scales].dims
        assert stored[scales].dims[0] in stored[kernel].dims
    others = [
        node for node in graph.node if node not in products and node.op_type != "QuantizeLinear"
    ]
    quantized = {name for node in quantized_nodes for name in node.input}
    assert not [node for node in others if quantized & set(node.input)]

    # onnxruntime computes all quantized products in int8, and does not dequantize the kernels.
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(
        tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert "DequantizeLinear" not in kinds
    assert kinds.count("QGemm") == len(quantized_nodes)


@needs_onnx
def test_onnx_int8_products_fit_16_bits(tmp_path):
    import onnx
    import onnxruntime

    # The head adds up the largest activation times the largest weight of either sign.
    images = keras.Input(SHAPE)
    head = keras.layers.Dense(4, use_bias=False, name="head")
    model = keras.Model(images, head(keras.layers.Flatten()(images)))
    pixels = int(np.prod(SHAPE))
    head.kernel.assign(np.tile([1.0, -1.0, 0.5, 0.0], (pixels, 1)))
    extreme = np.ones((1, *SHAPE), "float32")
    given = np.concatenate([extreme, np.zeros_like(extreme)])
    report = export.onnx(model, tmp_path / "model.onnx", quantization="int8", images=given)
    session = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    (outputs,) = session.run(["logits"], {"images": extreme})
    np.testing.assert_allclose(outputs[0], [pixels, -pixels, 0.5 * pixels, 0], rtol=1e-3)
    # Without VNNI, processors add two products in 16 bits: 2 * 255 * 64 fits, 2 * 255 * 127 does
    # not.
    stored = {
        tensor.name: tensor for tensor in onnx.load(tmp_path / "model.onnx").graph.initializer
    }
    kernels = [
        onnx.numpy_helper.to_array(tensor) for tensor in stored.values() if tensor.data_type == 3
    ]
    largest = max(np.abs(kernel.astype(int)).max() for kernel in kernels)
    assert 63 <= largest <= 64
    assert 2 * 255 * largest <= np.iinfo(np.int16).max
    assert report.largest_difference < 1e-3 * pixels


@needs_onnx
def test_feature_model_is_exported(tmp_path):
    model = tiny_model()
    images = example_images(SHAPE)
    pooled = keras_vit.FeatureModel(model, tokens="pooled")
    expected = keras_vit.features(model, images, tokens="pooled")
    export.litert(pooled, tmp_path / "pooled.tflite")
    run = choosing.FORMATS["litert"].runner((tmp_path / "pooled.tflite").read_bytes())
    np.testing.assert_allclose(run(images), expected, atol=1e-5)
    export.onnx(pooled, tmp_path / "pooled.onnx")
    run = choosing.FORMATS["onnx"].runner((tmp_path / "pooled.onnx").read_bytes())
    np.testing.assert_allclose(run(images), expected, atol=1e-5)
    several = keras_vit.FeatureModel(tiny_model(num_layers=2), [1, 2])
    for convert, name in ((export.litert, "a.tflite"), (export.onnx, "a.onnx")):
        with pytest.raises(ValueError, match="must have one output. Received: 2 outputs"):
            convert(several, tmp_path / name)


def test_onnx_int8_needs_images(tmp_path):
    with pytest.raises(
        ValueError, match="is required to calibrate int8 in ONNX. Received: images=None"
    ):
        export.onnx(tiny_model(), tmp_path / "a.onnx", quantization="int8")
    with pytest.raises(ValueError, match=r"\(N, 8, 12, 3\).*shape=\(0, 8, 12, 3\)"):
        reference(tiny_model(), np.zeros((0, *SHAPE)))


def test_installed_formats_are_measured(tmp_path):
    lines = []
    images = example_images(SHAPE, 20)
    measured = choosing.measure(tiny_model(**WIDE), tmp_path, images, lines.append, seconds=0)
    assert len(lines) == 1 + len(measured)
    assert "of the 20 given images" in lines[0]
    expected = set(choosing.CANDIDATES)
    if not all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime"))):
        expected -= {"onnx", "onnx_int8"}
    assert set(measured) == expected
    for name, (report, speed) in measured.items():
        assert speed > 0
        assert report.largest_difference > 0
        assert (report.largest_difference < 1e-5) == (not name.endswith(("int8", "bfloat16"))), name


def _measurement(speed, same_class):
    report = ExportReport("", 1, 1, 0.0, 1.0, same_class, 1.0, "")
    return report, speed


@pytest.mark.parametrize(
    ("calibrated", "int8", "bfloat16", "chosen", "reason"),
    [
        (
            True,
            0.99,
            1.0,
            "litert_int8",
            "accurate format, 3.0 times as fast as the float32 SavedModel$",
        ),
        (
            True,
            0.98,
            1.0,
            "saved_model bfloat16",
            "; litert_int8 is faster, but it predicts the same class for 98 %",
        ),
        (
            False,
            1.0,
            1.0,
            "saved_model bfloat16",
            "; litert_int8 is faster, but int8 .* --calibrate=FOLDER",
        ),
        (
            False,
            1.0,
            0.5,
            "saved_model",
            "faster, but int8 .*; saved_model bfloat16 is faster, but it .* for 50 %",
        ),
    ],
)
def test_chooses_fastest_accurate_format(calibrated, int8, bfloat16, chosen, reason):
    measured = {
        # 0.5 is ignored, because float32 predictions differ only in ties.
        "saved_model": _measurement(10, 0.5),
        "saved_model bfloat16": _measurement(20, bfloat16),
        "litert": _measurement(9, 1.0),
        "litert_int8": _measurement(30, int8),
    }
    name, why = choosing.choose(measured, calibrated)
    assert name == chosen and re.search(reason, why), why


def test_failed_conversion_is_skipped(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("an unknown operation")

    failing = dataclasses.replace(choosing.FORMATS["litert"], convert=fail)
    monkeypatch.setitem(choosing.FORMATS, "litert", failing)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    lines = []
    assert set(choosing.measure(tiny_model(), tmp_path, None, lines.append, 0)) == set(
        choosing.CANDIDATES[:2]
    )
    assert "skipped: The format LiteRT cannot store the model (an unknown op" in lines[-1]


def test_missing_onnx_error_names_package(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r'is not installed: pip install "keras_vit\[onnx\]"'):
        export.onnx(tiny_model(), tmp_path / "model.onnx")


def test_rejects_bad_arguments_without_writing(tmp_path):
    model = tiny_model()
    for call, message in (
        (lambda: export.litert(model, tmp_path / "a.lite"), 'must end in ".tflite"'),
        (
            lambda: export.litert(model, tmp_path / "a.tflite", quantization="int4"),
            "Received: quantization='int4'",
        ),
        (lambda: export.onnx(model, tmp_path / "a.pb"), 'must end in ".onnx"'),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert list(tmp_path.iterdir()) == []


def test_error_on_other_backends_explains_fix(tmp_path, monkeypatch):
    model = tiny_model()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for call, path in ((export.litert, tmp_path / "a.tflite"), (export.onnx, tmp_path / "a.onnx")):
        with pytest.raises(ValueError, match=r"KERAS_BACKEND=tensorflow.*backend='jax'"):
            call(model, path)


def test_compare_rejects_invalid_logits():
    model = tiny_model()
    _, logits = logits_of(model)
    report = compare("x", 1, model, reference(model), logits)
    assert report.largest_difference == 0
    assert report.cosine == pytest.approx(1)
    for bad in (logits[:3], np.full_like(logits, np.nan)):
        with pytest.raises(ValueError, match=r"finite logits of shape \(8, 5\)"):
            compare("x", 1, model, reference(model), bad)
