"""Tests of the choice between export formats."""

import dataclasses
import importlib.util
import re

import pytest
import tensorflow as tf

from keras_vit.export import choosing
from keras_vit.export.comparison import ExportReport, example_images
from keras_vit.export.litert_file import LITERT

from .conftest import SHAPE, WIDE, needs_onnx, tiny_model


def test_installed_formats_are_measured(tmp_path):
    lines = []
    images = example_images(SHAPE, 20)
    measured = choosing.measure(tiny_model(**WIDE), tmp_path, images, lines.append, seconds=0)
    assert "of the 20 given images" in lines[0]
    expected = {*choosing.SAVED_MODELS, *choosing.FILE_FORMATS}
    if not all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime"))):
        expected -= {"onnx", "onnx_int8"}
    assert set(measured) == expected
    for name, (report, speed) in measured.items():
        assert speed > 0
        assert report.largest_difference > 0
        is_exact = not name.endswith(("int8", "bfloat16"))
        assert (report.largest_difference < 1e-5) == is_exact, name


def _measurement(speed, same_class):
    """Returns a report and a speed, like `choosing.measure`."""
    report = ExportReport("", 1, 1, 0.0, 1.0, same_class, 1.0, "")
    return report, speed


@pytest.mark.parametrize(
    ("calibrated", "int8", "bfloat16", "chosen", "reason"),
    [
        (True, 0.99, 1.0, "litert_int8", "3.0 times as fast"),
        (True, 0.98, 1.0, "saved_model bfloat16", "predicts the same class for 98 %"),
        (False, 1.0, 1.0, "saved_model bfloat16", "--calibrate=FOLDER"),
        (False, 1.0, 0.5, "saved_model", "for 50 %"),
        (True, None, None, "saved_model", "does not predict classes"),
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
    name, explanation = choosing.choose(measured, calibrated)
    assert name == chosen
    assert reason in explanation


def test_failed_format_is_skipped(tmp_path, monkeypatch):
    def fail(*_):
        raise tf.errors.UnimplementedError(None, None, "an unknown operation")

    failing = dataclasses.replace(LITERT, runner=fail)
    monkeypatch.setitem(choosing.FILE_FORMATS, "litert", (failing, "none"))
    monkeypatch.setitem(choosing.FILE_FORMATS, "litert_int8", (failing, "int8"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    lines = []
    measured = choosing.measure(tiny_model(), tmp_path, None, lines.append, seconds=0)
    assert list(measured) == ["saved_model", "saved_model bfloat16"]
    text = "\n".join(lines)
    assert re.search(r"litert +skipped: The format LiteRT .*an unknown operation", text)
    assert re.search(r"onnx +skipped: tf2onnx is not installed", text)


@needs_onnx
def test_calibrated_format_is_skipped_without_images(tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "FILE_FORMATS", {"onnx_int8": choosing.FILE_FORMATS["onnx_int8"]})
    lines = []
    measured = choosing.measure(tiny_model(), tmp_path, None, lines.append, seconds=0)
    assert set(measured) == set(choosing.SAVED_MODELS)
    assert "onnx_int8            skipped: `images` (--calibrate) is required" in lines[-1]


def test_table_has_no_classes_of_features(tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "FILE_FORMATS", {})
    lines = []
    model = tiny_model(include_top=False)
    measured = choosing.measure(model, tmp_path, None, lines.append, seconds=0)
    assert {report.same_class for report, _ in measured.values()} == {None}
    assert all(line.endswith(" -") for line in lines[1:])
