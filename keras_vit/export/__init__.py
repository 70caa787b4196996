"""Trained models for others to use.

`saved_model` writes what a server needs; `load` and `load_card` give back the model and its description. `litert`,
`onnx` and `int8` (read by `load_int8`) write other formats and report how far their logits are from the model's.
"""

from keras_vit.export.int8 import int8, load_int8
from keras_vit.export.litert import litert
from keras_vit.export.loading import has_model, load, load_card
from keras_vit.export.model_card import CARD
from keras_vit.export.onnx import onnx
from keras_vit.export.report import ExportReport
from keras_vit.export.saved_model import check, default_signatures, saved_model
from keras_vit.export.signatures import SIGNATURES
from keras_vit.export.verification import SelfTestError
from keras_vit.export.versions import newest_version

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
