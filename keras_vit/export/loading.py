"""From an export back to a model."""

import json
import os
import tempfile

import keras
import tensorflow as tf

from keras_vit.export.beside import MODEL
from keras_vit.export.model_card import FILE as CARD


def load_card(path):
    """What an export says about itself, a dict; see `load`."""
    source = os.path.join(os.fspath(path), CARD)
    if not tf.io.gfile.exists(source):
        raise ValueError(f"The folder of an export holds {CARD}, and this one does not. Received: path={path!r}")
    with tf.io.gfile.GFile(source) as file:
        return json.loads(file.read())


def load(path):
    """The model of an export as it was when it was exported, to be trained further.

    Args:
        path: the folder of a version, any path of `tf.io.gfile`.

    Returns:
        A `keras.Model`; compiled if the exported one was.

    Raises:
        ValueError: the folder is no export.
    """
    path = os.fspath(path)
    source = os.path.join(path, MODEL)
    if not tf.io.gfile.exists(source):
        raise ValueError(f"The folder of an export holds {MODEL}, and this one does not. Received: path={path!r}")
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "model.keras")
        tf.io.gfile.copy(source, local)
        return keras.saving.load_model(local)
