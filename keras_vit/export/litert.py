"""A model for phones and browsers, as a LiteRT (.tflite) file."""

import os
import tempfile
import warnings

import numpy as np
import tensorflow as tf

from keras_vit.export.graph import write_graph
from keras_vit.export.other_backends import require_tensorflow
from keras_vit.export.plain_copy import plain_copy
from keras_vit.export.report import compared, example_images
from keras_vit.export.writing import write_whole

QUANTIZATIONS = ("none", "int8")


def litert(model, path, *, quantization="none"):
    """Writes a LiteRT file: `images`, float32 `(B, H, W, C)` as the model expects them, to what the model gives.

    Args:
        model: a `keras.Model` of any precision and strategy; the file computes in float32.
        path: where to write, ending in ".tflite". An existing file is replaced, at the end and at once.
        quantization: "none", or "int8" to keep the kernels as 8-bit integers and to compute with them (dynamic range).

    Returns:
        An `ExportReport`, of the file as LiteRT's interpreter runs it.

    Raises:
        ValueError: an argument is out of range, the backend is not TensorFlow, or the model cannot be converted.
    """
    path = os.fspath(path)
    if not path.endswith(".tflite"):
        raise ValueError(f'The path of a LiteRT file must end in ".tflite". Received: path={path!r}')
    if quantization not in QUANTIZATIONS:
        raise ValueError(
            f"`quantization` must be one of {', '.join(QUANTIZATIONS)}. Received: quantization={quantization!r}"
        )
    require_tensorflow("A LiteRT file")
    copy = plain_copy(model)
    spec = tf.TensorSpec((None, *model.input_shape[1:]), tf.float32, "images")
    with tempfile.TemporaryDirectory() as folder:
        write_graph(folder, copy, {"logits": (lambda images: {"logits": copy(images, training=False)}, spec)})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["logits"])
        if quantization == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        try:
            content = converter.convert()
        except Exception as error:  # whatever LiteRT's compiler says, in types of its own
            raise ValueError(
                f"LiteRT cannot convert the model ({str(error).splitlines()[0][:200]}). Received: model={model.name!r}"
            ) from error
    images = example_images(model.input_shape[1:])
    report = compared(path, len(content), model, images, run_litert(content, images))
    write_whole(path, content)
    return report


def run_litert(content, images):
    """What a LiteRT file answers.

    Args:
        content: its bytes.
        images: float32 `(B, H, W, C)`.

    Returns:
        float32 `(B, classes)`.
    """
    with warnings.catch_warnings():
        # TensorFlow's interpreter says that it will move to a package of its own.
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(model_content=content)
    (given,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(given["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], np.asarray(images, np.float32))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
