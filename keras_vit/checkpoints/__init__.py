"""Weights in the original's layout: reading them into a built model.

`load(model, source)` is the one way in. `archive` reads files, `names` says what each variable is called in the
original, `positions` resamples position embeddings to another grid.
"""

from keras_vit.checkpoints.loading import load

__all__ = ["load"]
