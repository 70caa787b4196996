"""Trained models as SavedModels."""

from keras_vit.export.saved_model import saved_model

__all__ = ["saved_model"]
