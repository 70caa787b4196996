"""Reads and writes checkpoints of this library and of others.

`load(model, source)` reads, `save(model, path)` writes, `infer_architecture(source)` returns the model of a file.
"""

from keras_vit.checkpoints.inference import find_preprocessing, infer_architecture
from keras_vit.checkpoints.loading import load
from keras_vit.checkpoints.planning import LoadReport
from keras_vit.checkpoints.published import fetch, find_published
from keras_vit.checkpoints.saving import save

__all__ = ["LoadReport", "fetch", "find_preprocessing", "find_published", "infer_architecture", "load", "save"]
