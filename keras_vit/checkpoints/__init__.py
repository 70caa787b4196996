"""Weights of other code and of this: every published checkpoint in, and the original's layout out.

`load(model, source)` reads, `save(model, path)` writes, `recognise(source)` says what model a file is of. One file each
for the names of each dialect (`names` is the original's), `positions` resamples position embeddings, `published` is
the table of published weights, `downloading` fetches them.
"""

from keras_vit.checkpoints.loading import load
from keras_vit.checkpoints.recognition import recognise
from keras_vit.checkpoints.report import LoadReport
from keras_vit.checkpoints.saving import save
from keras_vit.checkpoints.sources import find_published

__all__ = ["LoadReport", "find_published", "load", "recognise", "save"]
