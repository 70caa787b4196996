"""Trained models for others to use: a SavedModel for servers, with everything they need, and other formats."""

from keras_vit.export.loading import load
from keras_vit.export.saved_model import saved_model
from keras_vit.export.signatures import SIGNATURES
from keras_vit.export.tested import SelfTestError

__all__ = ["SIGNATURES", "SelfTestError", "load", "saved_model"]
