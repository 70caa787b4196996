"""From stored images to batches: the only part of the package that knows tf.data.

`load` returns the train and test sources of a dataset; `train_batches` and `eval_batches` make batches of a source;
`from_config` does both for a config's `data` group, whose fields `defaults` lists.
"""

from keras_vit.data.bad_examples import BadExamples, labels_of, sum_counts
from keras_vit.data.batching import eval_batches, train_batches
from keras_vit.data.config import InputPipeline, defaults, from_config, load_splits, option_fields
from keras_vit.data.datasets import DATASETS
from keras_vit.data.devices import hide_accelerators_from_tensorflow
from keras_vit.data.lanes import evaluation_order
from keras_vit.data.loading import load, load_split
from keras_vit.data.options import Options
from keras_vit.data.service import serve
from keras_vit.data.sources import (
    Source,
    arrays,
    check_splits,
    file_list,
    folder,
    folder_splits,
    shapes,
    subset,
    tfds,
    tfrecords,
)
from keras_vit.data.verify import verify

__all__ = [
    "DATASETS",
    "BadExamples",
    "InputPipeline",
    "Options",
    "Source",
    "arrays",
    "check_splits",
    "defaults",
    "eval_batches",
    "evaluation_order",
    "file_list",
    "folder",
    "folder_splits",
    "from_config",
    "hide_accelerators_from_tensorflow",
    "labels_of",
    "load",
    "load_split",
    "load_splits",
    "option_fields",
    "serve",
    "shapes",
    "subset",
    "sum_counts",
    "tfds",
    "tfrecords",
    "train_batches",
    "verify",
]
