"""A model for phones and browsers, as a LiteRT (.tflite) file."""

import os
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.graph import require_tensorflow, write_graph
from keras_vit.export.inference_copy import inference_copy
from keras_vit.export.report import ExportReport, example_images, write_compared

QUANTIZATIONS = ("none", "int8")


def litert(model: keras.Model, path: str | os.PathLike, *, quantization: str = "none") -> ExportReport:
    """Writes a LiteRT file: `images`, float32 `(B, H, W, C)` as the model expects them, to `logits`.

    Args:
        model: a `keras.Model` of any precision and strategy; the file computes in float32.
        path: where to write, ending in ".tflite". An existing file is replaced once the new
            one is whole.
        quantization: "none", or "int8" to keep the kernels as 8-bit integers and to compute with them (dynamic range).

    Returns:
        An `ExportReport`, of the file as LiteRT's interpreter runs it.

    Raises:
        ValueError: an argument is out of range, the file cannot be written, the backend is not TensorFlow, or the model
            cannot be converted.
    """
    path = os.fspath(path)
    if not path.endswith(".tflite"):
        raise ValueError(f'The path of a LiteRT file must end in ".tflite". Received: path={path!r}')
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"`quantization` must be one of {', '.join(QUANTIZATIONS)}. Received: quantization={quantization!r}"
        )
    require_tensorflow("A LiteRT file")
    copy = inference_copy(model)
    spec = tf.TensorSpec((None, *model.input_shape[1:]), tf.float32, "images")
    with tempfile.TemporaryDirectory() as folder:
        write_graph(folder, copy, {"logits": (lambda images: {"logits": copy(images, training=False)}, spec)})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["logits"])
        if quantization == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        try:
            content = converter.convert()
        except Exception as error:  # LiteRT's compiler has its own exception types
            raise ValueError(
                f"LiteRT cannot convert the model ({str(error).splitlines()[0][:200]}). Received: model={model.name!r}"
            ) from error
    images = example_images(model.input_shape[1:])
    return write_compared(path, content, model, images, run_litert(content, images))


def run_litert(content, images):
    """Runs a LiteRT file.

    Args:
        content: the bytes of the file.
        images: float32 `(B, H, W, C)`.

    Returns:
        float32 `(B, classes)`.
    """
    with warnings.catch_warnings():
        # TensorFlow warns that its interpreter will move to another package.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(model_content=content)
    (input_details,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(input_details["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(input_details["index"], np.asarray(images, np.float32))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
