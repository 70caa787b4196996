"""A model with 8-bit kernels, quantized by Keras."""

import json
import os
import warnings

import keras
import numpy as np

from keras_vit import files
from keras_vit.export.inference_copy import inference_copy
from keras_vit.export.report import ExportReport, compare, example_images

CONFIG, WEIGHTS = "model.json", "int8.weights.h5"


def int8(model: keras.Model, path: str | os.PathLike) -> ExportReport:
    """Writes a folder with a model whose dense kernels are 8-bit integers; `load_int8` reads it.

    Args:
        model: a `keras.Model` of any precision and strategy. Convolutions and norms stay float32, so only the head of a
            BiT ResNet is quantized.
        path: a folder that does not exist yet.

    Returns:
        An `ExportReport`, of the model as it was read back.

    Raises:
        ValueError: the folder exists, or the model has nothing that can be quantized.
    """
    path = os.fspath(path)
    if os.path.exists(path):
        raise ValueError(f"The folder must not exist yet. Received: path={path!r}")
    copy = inference_copy(model)
    config = keras.saving.serialize_keras_object(copy)
    _quantize(copy)
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    with files.staging_dir(parent) as folder:
        with open(os.path.join(folder, CONFIG), "w", encoding="utf-8") as file:
            json.dump(config, file)
        copy.save_weights(os.path.join(folder, WEIGHTS))
        images = example_images(model.input_shape[1:])
        logits = keras.ops.convert_to_numpy(load_int8(folder)(images, training=False))
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in (CONFIG, WEIGHTS))
        report = compare(path, size, model, images, np.asarray(logits, np.float32))
        os.rename(folder, path)
    return report


def load_int8(path: str | os.PathLike) -> keras.Model:
    """A quantized model, for inference; it cannot be trained.

    Args:
        path: a folder that `int8` wrote.

    Returns:
        A `keras.Model`.

    Raises:
        ValueError: `int8` did not write the folder.
    """
    path = os.fspath(path)
    config = files.read_json(os.path.join(path, CONFIG))
    if config is None:
        raise ValueError(f"The folder must hold {CONFIG} and {WEIGHTS}. Received: path={path!r}")
    model = keras.saving.deserialize_keras_object(config)
    # Keras cannot load a quantized layer that is inside another layer from a .keras file; weights alone it can.
    _quantize(model)
    model.load_weights(os.path.join(path, WEIGHTS))
    return model


def _quantize(model):
    with warnings.catch_warnings():
        # Keras warns about every layer without kernels.
        warnings.simplefilter("ignore")
        # The projections of attention are of a subclass of EinsumDense, which the check of types would skip.
        model.quantize("int8", type_check=False)
    if not any(weight.dtype == "int8" for weight in model.weights):
        raise ValueError(f"The model has no kernel that Keras can quantize. Received: model={model.name!r}")
