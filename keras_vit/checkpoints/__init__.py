"""Checkpoints: weights of this library and of others, read and written.

`load(model, source)` reads, `save(model, path)` writes, `infer_architecture(source)` says which model a file needs.

Inside, every array has a canonical name (`names`). `readers` reads headers, `formats` translates names and layouts by
the tables of the families (`registry`), and `planning` decides what happens to every array before the first one is
read. `published` and `downloading` turn a name or a URL into a local file.
"""

from keras_vit.checkpoints.inference import find_preprocessing, infer_architecture
from keras_vit.checkpoints.loading import load
from keras_vit.checkpoints.planning import LoadReport
from keras_vit.checkpoints.published import fetch, find_published
from keras_vit.checkpoints.saving import save

__all__ = ["LoadReport", "fetch", "find_preprocessing", "find_published", "infer_architecture", "load", "save"]
