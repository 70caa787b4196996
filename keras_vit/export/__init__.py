"""Exports trained models.

`saved_model` writes a SavedModel for a server, and `check` tests in advance whether `saved_model`
can export a model. `load` and `load_card` read the model and its card from a SavedModel. `litert`
and `onnx` write LiteRT and ONNX files, and compare the outputs of the files with the model's.
"""

from keras_vit.export.checks import check, default_signatures
from keras_vit.export.comparison import ExportReport
from keras_vit.export.litert_file import litert
from keras_vit.export.onnx_file import onnx
from keras_vit.export.saved_model import saved_model
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
    "litert",
    "load",
    "load_card",
    "newest_version",
    "onnx",
    "saved_model",
]
