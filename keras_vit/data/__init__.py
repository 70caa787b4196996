"""From stored images to batches: the only part of the package that knows tf.data.

`load` gives the train and test sources of a dataset; `train_batches` and `eval_batches` make batches of a source.
"""

from keras_vit.data.pipeline import eval_batches, train_batches
from keras_vit.data.sources import Source, arrays, load

__all__ = ["Source", "arrays", "eval_batches", "load", "train_batches"]
