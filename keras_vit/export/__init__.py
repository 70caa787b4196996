"""Exports of trained models.

`saved_model` writes a folder for a server, and `check` tells beforehand whether it can; `load` and `load_card` read the
model and its description back. `litert`, `onnx` and `int8` (read by `load_int8`) write other formats and report how far
their logits are from the model's.
"""

from keras_vit.export.conversions import ExportReport, int8, litert, load_int8, onnx
from keras_vit.export.saved_model import check, default_signatures, saved_model
from keras_vit.export.signatures import SIGNATURES
from keras_vit.export.verification import SelfTestError
from keras_vit.export.versions import CARD, has_model, load, load_card, newest_version

__all__ = [
    "CARD",
    "SIGNATURES",
    "ExportReport",
    "SelfTestError",
    "check",
    "default_signatures",
    "has_model",
    "int8",
    "litert",
    "load",
    "load_card",
    "load_int8",
    "newest_version",
    "onnx",
    "saved_model",
]
