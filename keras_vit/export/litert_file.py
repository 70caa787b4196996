"""LiteRT files."""

import os
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.comparison import ExportReport
from keras_vit.export.file_format import Format
from keras_vit.export.graph import write_logits_graph


def litert(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    quantization: str = "none",
    images: np.ndarray | None = None,
) -> ExportReport:
    """Writes a LiteRT file with the input `images` and the output `logits`.

    The images are float32 `(B, H, W, C)`, preprocessed for the model.

    Args:
        model: a `keras.Model` with one output, such as logits or the features of a `FeatureModel`,
            of any precision and strategy; an unquantized file computes in float32.
        path: the file to write, ending in ".tflite"; an existing file is replaced atomically.
        quantization: "none", or "int8" to store kernels and compute products with kernels in 8-bit
            integers (LiteRT's dynamic-range quantization).
        images: images for the report, float32 `(N, H, W, C)`, preprocessed for the model; None for
            smooth noise.

    Returns:
        An `ExportReport` that compares the model with the file in LiteRT's interpreter.

    Raises:
        ValueError: an argument is invalid, the file cannot be written, the backend is not
            TensorFlow, or the model cannot be converted.
    """
    return LITERT.write(model, path, quantization, images)


def _convert(model, spec, quantization, images):
    with tempfile.TemporaryDirectory() as folder:
        write_logits_graph(folder, model, spec)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["logits"])
        if quantization == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return converter.convert()


def _runner(content):
    """Returns a function that runs the content of a LiteRT file on images, which are float32
    `(B, H, W, C)`."""
    with warnings.catch_warnings():
        # TensorFlow announces that its interpreter will move to another package.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(model_content=content, num_threads=os.cpu_count())
    interpreter.allocate_tensors()
    (source,) = interpreter.get_input_details()
    (output,) = interpreter.get_output_details()

    def run(images):
        # A signature runner would allocate all tensors again in each call, which halves the speed.
        if tuple(interpreter.get_input_details()[0]["shape"]) != images.shape:
            interpreter.resize_tensor_input(source["index"], images.shape)
            interpreter.allocate_tensors()
        interpreter.set_tensor(source["index"], np.asarray(images, np.float32))
        interpreter.invoke()
        return interpreter.get_tensor(output["index"])

    return run


LITERT = Format("LiteRT", ".tflite", _convert, _runner)
