"""A model with 8-bit kernels, by Keras' own quantisation."""

import json
import os
import shutil
import tempfile
import warnings

import keras
import numpy as np

from keras_vit.export.plain_copy import plain_copy
from keras_vit.export.report import compared, example_images

CONFIG, WEIGHTS = "model.json", "int8.weights.h5"


def int8(model, path):
    """Writes a folder with a model whose dense kernels are 8-bit integers; `load_int8` reads it.

    Args:
        model: a `keras.Model` of any precision and strategy; what is not quantised stays float32.
        path: a folder that is not there yet.

    Returns:
        An `ExportReport`, of the model as it was read back.

    Raises:
        ValueError: the folder exists, or the model has nothing that can be quantised.
    """
    path = os.fspath(path)
    if os.path.exists(path):
        raise ValueError(f"The folder must not exist yet. Received: path={path!r}")
    copy = plain_copy(model)
    config = keras.saving.serialize_keras_object(copy)
    _quantize(copy)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    part = tempfile.mkdtemp(prefix="partial-", dir=os.path.dirname(os.path.abspath(path)))
    try:
        with open(os.path.join(part, CONFIG), "w", encoding="utf-8") as file:
            json.dump(config, file)
        copy.save_weights(os.path.join(part, WEIGHTS))
        images = example_images(model.input_shape[1:])
        logits = keras.ops.convert_to_numpy(load_int8(part)(images, training=False))
        size = sum(os.path.getsize(os.path.join(part, name)) for name in (CONFIG, WEIGHTS))
        report = compared(path, size, model, images, np.asarray(logits, np.float32))
        os.chmod(part, 0o755)
        os.rename(part, path)
        return report
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load_int8(path):
    """A quantised model, to be asked; it cannot be trained.

    Args:
        path: a folder that `int8` wrote.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: the folder is none of those.
    """
    path = os.fspath(path)
    if not os.path.exists(os.path.join(path, CONFIG)):
        raise ValueError(f"The folder must hold {CONFIG} and {WEIGHTS}. Received: path={path!r}")
    with open(os.path.join(path, CONFIG), encoding="utf-8") as file:
        model = keras.saving.deserialize_keras_object(json.load(file))
    # Keras cannot load a quantised layer inside another from a .keras file; weights alone it can.
    _quantize(model)
    model.load_weights(os.path.join(path, WEIGHTS))
    return model


def _quantize(model):
    with warnings.catch_warnings():
        # Keras names every layer without kernels. Projections of attention are a subclass of its own.
        warnings.simplefilter("ignore")
        model.quantize("int8", type_check=False)
    if not any(weight.dtype == "int8" for weight in model.weights):
        raise ValueError(f"The model has no kernel that Keras can quantise. Received: model={model.name!r}")
