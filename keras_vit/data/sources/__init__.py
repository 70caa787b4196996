"""Where examples come from: one file for each kind of place, all returning a `Source`."""

from keras_vit.data.sources.arrays import arrays, digits, first_of_each_class
from keras_vit.data.sources.files import folder, folder_splits, listed_once
from keras_vit.data.sources.lists import file_list, read_text_file
from keras_vit.data.sources.shapes import shapes
from keras_vit.data.sources.source import Source, check_splits
from keras_vit.data.sources.subset import subset
from keras_vit.data.sources.tfds import tfds
from keras_vit.data.sources.tfrecords import tfrecords

__all__ = [
    "Source",
    "arrays",
    "check_splits",
    "digits",
    "file_list",
    "first_of_each_class",
    "folder",
    "folder_splits",
    "listed_once",
    "read_text_file",
    "shapes",
    "subset",
    "tfds",
    "tfrecords",
]
