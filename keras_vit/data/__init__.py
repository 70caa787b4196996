"""The input pipeline, from stored images to batches.

`load` returns the training and test sources of a dataset. `train_batches` and `eval_batches` make
batches from a source. `from_config` returns an `InputPipeline`, which does both for a config's
`data` group; `defaults` returns the fields of that group.
"""

from keras_vit.data.bad_examples import BadExamples
from keras_vit.data.batching import eval_batches, evaluation_order, train_batches
from keras_vit.data.config import (
    defaults,
    from_config,
    hide_accelerators_from_tensorflow,
    load_splits,
    option_fields,
)
from keras_vit.data.datasets import DATASETS
from keras_vit.data.loading import SOURCES, dataset_names, load, load_split
from keras_vit.data.options import Options
from keras_vit.data.pipeline import InputPipeline
from keras_vit.data.sources.arrays import arrays
from keras_vit.data.sources.file_lists import file_list
from keras_vit.data.sources.folders import folder, folder_splits
from keras_vit.data.sources.source import Source, subset
from keras_vit.data.sources.tfds import tfds
from keras_vit.data.sources.tfrecords import tfrecords
from keras_vit.data.targets import TARGETS, Target
from keras_vit.data.targets.classes import check_splits
from keras_vit.data.verification import verify

__all__ = [
    "DATASETS",
    "SOURCES",
    "TARGETS",
    "BadExamples",
    "InputPipeline",
    "Options",
    "Source",
    "Target",
    "arrays",
    "check_splits",
    "dataset_names",
    "defaults",
    "eval_batches",
    "evaluation_order",
    "file_list",
    "folder",
    "folder_splits",
    "from_config",
    "hide_accelerators_from_tensorflow",
    "load",
    "load_split",
    "load_splits",
    "option_fields",
    "subset",
    "tfds",
    "tfrecords",
    "train_batches",
    "verify",
]
