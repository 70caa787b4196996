"""Reads and writes checkpoints of this and other libraries.

`load(model, source)` loads weights into a model, and `save(model, path)` saves them.
`infer_architecture(source)` returns the constructor name and arguments for a checkpoint.
"""

from keras_vit.checkpoints.inference import find_class_names, find_preprocessing, infer_architecture
from keras_vit.checkpoints.loading import load
from keras_vit.checkpoints.published import fetch, find_published
from keras_vit.checkpoints.report import LoadReport
from keras_vit.checkpoints.saving import save

__all__ = [
    "LoadReport",
    "fetch",
    "find_class_names",
    "find_preprocessing",
    "find_published",
    "infer_architecture",
    "load",
    "save",
]
