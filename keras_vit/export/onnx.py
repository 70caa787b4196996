"""A model for other runtimes, as an ONNX file."""

import os

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.graph import require_tensorflow
from keras_vit.export.inference_copy import inference_copy
from keras_vit.export.report import ExportReport, example_images, write_compared

OPSET = 18  # the newest that tf2onnx writes


def onnx(model: keras.Model, path: str | os.PathLike) -> ExportReport:
    """Writes an ONNX file: `images`, float32 `(B, H, W, C)` as the model expects them, to `logits`.

    Args:
        model: a `keras.Model` of any precision and strategy; the file computes in float32.
        path: where to write, ending in ".onnx". An existing file is replaced once the new one is whole.

    Returns:
        An `ExportReport`, of the file as onnxruntime runs it.

    Raises:
        ValueError: the path has another ending, the file cannot be written, the backend is not TensorFlow, or the model
            cannot be converted.
        ImportError: tf2onnx or onnxruntime is not installed.
    """
    path = os.fspath(path)
    if not path.endswith(".onnx"):
        raise ValueError(f'The path of an ONNX file must end in ".onnx". Received: path={path!r}')
    require_tensorflow("An ONNX file")
    try:
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ImportError(f'{error.name} is not installed: pip install "keras_vit[onnx]"', name=error.name) from error
    copy = inference_copy(model)
    spec = tf.TensorSpec((None, *model.input_shape[1:]), tf.float32, "images")
    function = tf.function(
        lambda images: {"logits": copy(images, training=False)}, input_signature=[spec], autograph=False
    )
    images = example_images(model.input_shape[1:])
    try:
        converted, _ = tf2onnx.convert.from_function(
            function, input_signature=[spec], opset=OPSET, custom_op_handlers={"Erfc": (_erfc, [])}
        )
        _separate_pads_from_max_pools(converted.graph)
        content = converted.SerializeToString()
        # A conversion may succeed and still give a file that no runtime reads.
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (logits,) = session.run(["logits"], {"images": images})
    except Exception as error:  # tf2onnx, onnx and onnxruntime each have their own exception types
        raise ValueError(
            f"tf2onnx cannot convert the model ({str(error).splitlines()[0][:200]}). Received: model={model.name!r}"
        ) from error
    return write_compared(path, content, model, images, logits)


def _erfc(graph, node, name, _):
    """Exact GELU uses erfc(x), which ONNX does not have: 1 - erf(x)."""
    erf = graph.make_node("Erf", node.input, name=f"{name}_erf")
    one = graph.make_const(f"{name}_one", np.ones((), np.float32))
    outputs = node.output
    graph.remove_node(name)
    graph.make_node("Sub", [one.output[0], erf.output[0]], name=name, outputs=outputs)


def _separate_pads_from_max_pools(graph):
    """Puts an operation that changes nothing, a maximum with the lowest float, between a Pad and a MaxPool.

    onnxruntime (1.31) merges the two by default and takes the padding for minus infinity whatever its value is, but
    BiT ResNets pad with zeros.
    """
    from onnx import helper

    pads = {output for node in graph.node if node.op_type == "Pad" for output in node.output}
    for i, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "MaxPool" and node.input[0] in pads:
            lowest, separated = f"{node.name}_lowest", f"{node.name}_input"
            graph.initializer.append(helper.make_tensor(lowest, 1, (), [np.finfo(np.float32).min]))  # 1: FLOAT
            graph.node.insert(i, helper.make_node("Max", [node.input[0], lowest], [separated], name=separated))
            node.input[0] = separated
