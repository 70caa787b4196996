"""Reads and writes checkpoints of this and other libraries.

`load(model, source)` reads and `save(model, path)` writes weights. `infer_architecture(source)` returns the name
and the arguments of the constructor that matches a file.
"""

from keras_vit.checkpoints.inference import find_preprocessing, infer_architecture
from keras_vit.checkpoints.loading import load
from keras_vit.checkpoints.planning import LoadReport
from keras_vit.checkpoints.published import fetch, find_published
from keras_vit.checkpoints.saving import save

__all__ = ["LoadReport", "fetch", "find_preprocessing", "find_published", "infer_architecture", "load", "save"]
