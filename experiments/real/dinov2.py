"""The trained DINOv2 ViT-S/14 that `extract_dinov2.py` writes: its inputs and exported files."""

import io
from pathlib import Path

import keras
import numpy as np

import keras_vit
from keras_vit import export
from keras_vit.export.choosing import FILE_FORMATS


def check_model(folder):
    """Raises a `ValueError` unless a folder contains `model.safetensors`, which extract_dinov2.py
    writes."""
    if not Path(folder, "model.safetensors").is_file():
        raise ValueError(
            f"--model must be a folder written by extract_dinov2.py. Received: --model={folder}"
        )


def normalized(pictures):
    """Normalizes uint8 pictures `(N, H, W, 3)` by ImageNet's mean and standard deviation; returns
    float32."""
    mean = np.array([0.485, 0.456, 0.406])
    std = np.array([0.229, 0.224, 0.225])
    return ((pictures / 255 - mean) / std).astype("float32")


def export_saved_model(model, folder):
    """Exports a SavedModel; returns a function from uint8 pictures, which it receives as PNG files,
    to a dict of their `representation` and `patches`."""
    import tensorflow as tf
    from PIL import Image

    path = export.saved_model(model, folder / "saved_model", signatures=["features"])
    signature = tf.saved_model.load(path).signatures["features"]

    def compute(pictures):
        contents = []
        for picture in pictures:
            file = io.BytesIO()
            Image.fromarray(picture).save(file, "png")
            contents.append(file.getvalue())
        outputs = signature(image_bytes=tf.constant(contents))
        return {name: output.numpy() for name, output in outputs.items()}

    return compute


def export_file(model, folder, kind, tokens):
    """Exports a model of the `tokens` of a model; returns a function from normalized images to
    them.

    `kind` is "onnx", "litert" or "litert_int8", and `tokens` is as in `keras_vit.FeatureModel`.
    """
    inputs = keras.Input(model.input_shape[1:])
    features = keras.Model(inputs, keras_vit.FeatureModel(model, tokens=tokens)(inputs))
    form, quantization = FILE_FORMATS[kind]
    path = folder / f"{kind}{form.ending}"
    form.write(features, path, quantization, None)
    return form.runner(path.read_bytes())
