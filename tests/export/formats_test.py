"""LiteRT and ONNX exports: runs each converted model and compares its logits with the Keras model's."""

import builtins
import importlib.util

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import export
from keras_vit.export.conversions import compare, example_images

from .conftest import SHAPE, tiny_model

WIDE = {"hidden_size": 32, "mlp_dim": 64}  # wide enough that kernels are most of a file
needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime"))), reason="tf2onnx or onnxruntime is not installed"
)


def logits_of(model):
    images = example_images(SHAPE)
    return images, keras.ops.convert_to_numpy(keras.ops.cast(model(images), "float32"))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_litert_in_float32_gives_the_same_logits(policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    report = export.litert(tiny_model(exact_gelu=policy == "float32"), tmp_path / "model.tflite")
    assert report.largest_difference < (1e-5 if policy == "float32" else 0.1)
    assert report.size_bytes == (tmp_path / "model.tflite").stat().st_size
    assert (tmp_path / "model.tflite").read_bytes()[4:8] == b"TFL3"
    assert len(list(tmp_path.iterdir())) == 1


def test_litert_in_int8_is_smaller_and_close(tmp_path):
    model = tiny_model(**WIDE)
    whole = export.litert(model, tmp_path / "whole.tflite")
    small = export.litert(model, tmp_path / "small.tflite", quantization="int8")
    assert small.size_bytes < 0.7 * whole.size_bytes
    assert 1e-5 < small.largest_difference < 0.1 * small.logits_range


@needs_onnx
@pytest.mark.parametrize("exact_gelu", [False, True])
def test_onnx_logits_match(exact_gelu, tmp_path):
    import onnxruntime

    model = tiny_model(exact_gelu=exact_gelu)
    report = export.onnx(model, tmp_path / "model.onnx")
    assert report.largest_difference < 1e-5 and report.size_bytes == (tmp_path / "model.onnx").stat().st_size
    images, logits = logits_of(model)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for batch in (1, 5):
        (outputs,) = session.run(["logits"], {"images": images[:batch]})
        np.testing.assert_allclose(outputs, logits[:batch], atol=1e-5)


@needs_onnx
def test_onnx_folds_constant_expressions(tmp_path):
    import onnx

    model = keras_vit.VisionTransformer(
        input_shape=(32, 32, 3), classes=5, stem="resnet", resnet_blocks=(1,), patch_size=1, num_layers=1,
        hidden_size=16, mlp_dim=16, num_heads=2,
    )  # fmt: skip
    assert export.onnx(model, tmp_path / "model.onnx").largest_difference < 1e-5
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [value.name for value in graph.input] == ["images"]
    weights = {tensor.name for tensor in graph.initializer}
    read = {name for node in graph.node for name in node.input}
    assert weights <= read and not any(weights.issuperset(node.input) for node in graph.node)


def test_onnx_names_the_package_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def hide(name, *args):
        if name in ("tf2onnx", "onnxruntime"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", hide)
    with pytest.raises(ImportError, match=r'is not installed: pip install "keras_vit\[onnx\]"'):
        export.onnx(tiny_model(), tmp_path / "model.onnx")


def test_bad_arguments_are_refused_and_nothing_is_written(tmp_path):
    model = tiny_model()
    for call, message in (
        (lambda: export.litert(model, tmp_path / "a.lite"), 'must end in ".tflite"'),
        (lambda: export.litert(model, tmp_path / "a.tflite", quantization="int4"), "Received: quantization='int4'"),
        (lambda: export.onnx(model, tmp_path / "a.pb"), 'must end in ".onnx"'),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert list(tmp_path.iterdir()) == []


def test_error_on_other_backends_explains_the_fix(tmp_path, monkeypatch):
    model = tiny_model()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for call, path in ((export.litert, tmp_path / "a.tflite"), (export.onnx, tmp_path / "a.onnx")):
        with pytest.raises(ValueError, match=r"save the model as .keras .* KERAS_BACKEND=tensorflow.*backend='jax'"):
            call(model, path)


def test_invalid_conversion_is_rejected():
    model = tiny_model()
    images, logits = logits_of(model)
    assert compare("x", 1, model, images, logits).largest_difference == 0
    for bad in (logits[:3], np.full_like(logits, np.nan)):
        with pytest.raises(ValueError, match=r"finite logits of shape \(8, 5\)"):
            compare("x", 1, model, images, bad)
