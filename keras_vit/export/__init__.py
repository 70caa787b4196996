"""Trained models for others to use.

`saved_model` writes what a server needs and `load` and `load_card` give back the model
and what is known about it; `litert`, `onnx` and `int8` (read by
`load_int8`) write other formats and report what they cost.
"""

from keras_vit.export.int8 import int8, load_int8
from keras_vit.export.litert import litert
from keras_vit.export.loading import load, load_card
from keras_vit.export.onnx import onnx
from keras_vit.export.report import ExportReport
from keras_vit.export.saved_model import saved_model
from keras_vit.export.signatures import SIGNATURES
from keras_vit.export.tested import SelfTestError

__all__ = [
    "SIGNATURES",
    "ExportReport",
    "SelfTestError",
    "int8",
    "litert",
    "load",
    "load_card",
    "load_int8",
    "onnx",
    "saved_model",
]
