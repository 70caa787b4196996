"""The preprocessing of a model's input images, and functions that apply, check and find it."""

from keras_vit.preprocessing.images import (
    check_channels,
    concrete_values,
    preprocess_input,
    range_error,
)
from keras_vit.preprocessing.models import find_preprocessing, preprocessing_of
from keras_vit.preprocessing.settings import LAYOUTS, Layout, Preprocessing

__all__ = [
    "LAYOUTS",
    "Layout",
    "Preprocessing",
    "check_channels",
    "concrete_values",
    "find_preprocessing",
    "preprocess_input",
    "preprocessing_of",
    "range_error",
]
