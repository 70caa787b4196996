"""Exports models to LiteRT and ONNX, runs the files, and compares their logits with the model's."""

import dataclasses
import os
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_vit import files
from keras_vit.export.graph import inference_copy, require_tensorflow, write_graph
from keras_vit.models.any_model import check_images_known, is_naflex
from keras_vit.terminal import first_line

_OPSET = 18  # the newest opset that tf2onnx writes


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """A comparison of a converted model with the original, on images of smooth noise.

    Attributes:
        path: path of the written file.
        size_bytes: size of the file in bytes.
        weights_bytes: size of the model's weights in float32, in bytes.
        largest_difference: largest absolute difference between two corresponding logits.
        logits_range: difference between the original's largest and smallest logit, as a scale for `largest_difference`.
        same_class: fraction of images, in [0, 1], for which both models predict the same class.
    """

    path: str
    size_bytes: int
    weights_bytes: int
    largest_difference: float
    logits_range: float
    same_class: float

    def __str__(self):
        return (
            f"{self.path}: {self.size_bytes / 1e6:.2f} MB ({self.size_bytes / self.weights_bytes:.2f} of float32), "
            f"logits differ by at most {self.largest_difference:.2g} (their range is {self.logits_range:.2g}), "
            f"same class for {100 * self.same_class:.0f} % of the images"
        )


def litert(model: keras.Model, path: str | os.PathLike, *, quantization: str = "none") -> ExportReport:
    """Writes a LiteRT file with the input `images` and the output `logits`.

    The images are float32 `(B, H, W, C)`, preprocessed for the model.

    Args:
        model: a `keras.Model` of any precision and strategy; the file computes in float32.
        path: the file to write, ending in ".tflite"; an existing file is replaced atomically.
        quantization: "none", or "int8" for kernels and matrix products in 8-bit integers (dynamic range).

    Returns:
        An `ExportReport` on the file, run by LiteRT's interpreter.

    Raises:
        ValueError: an argument is invalid, the file cannot be written, the backend is not TensorFlow, or the model
            cannot be converted.
    """
    if quantization not in ("none", "int8"):
        raise ValueError(f"`quantization` must be one of none, int8. Received: quantization={quantization!r}")
    path, copy, spec = _inference_copy(model, path, ".tflite", "A LiteRT file")
    with tempfile.TemporaryDirectory() as folder:
        write_graph(folder, copy, {"logits": (lambda images: {"logits": copy(images, training=False)}, spec)})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["logits"])
        if quantization == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        try:
            content = converter.convert()
        except Exception as error:  # LiteRT's converter has its own exception types
            raise _cannot_convert("LiteRT", model, error) from error
    images = example_images(spec.shape[1:])
    return _write_compared(path, content, model, images, run_litert(content, images))


def run_litert(content, images):
    """Runs the content of a LiteRT file on images, float32 `(B, H, W, C)`, and returns the outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow announces that its interpreter will move to another package
        interpreter = tf.lite.Interpreter(model_content=content)
    (input_details,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(input_details["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(input_details["index"], np.asarray(images, np.float32))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def onnx(model: keras.Model, path: str | os.PathLike) -> ExportReport:
    """Writes an ONNX file with the input `images` and the output `logits`.

    The images are float32 `(B, H, W, C)`, preprocessed for the model.

    Args:
        model: a `keras.Model` of any precision and strategy; the file computes in float32.
        path: the file to write, ending in ".onnx"; an existing file is replaced atomically.

    Returns:
        An `ExportReport` on the file, run by onnxruntime.

    Raises:
        ValueError: an argument is invalid, the file cannot be written, the backend is not TensorFlow, or the model
            cannot be converted.
        ImportError: tf2onnx or onnxruntime is not installed.
    """
    path, copy, spec = _inference_copy(model, path, ".onnx", "An ONNX file")
    try:
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ImportError(f'{error.name} is not installed: pip install "keras_vit[onnx]"', name=error.name) from error
    # tf2onnx copies constants in each of its passes, so pass the weights as inputs during the conversion.
    weights = {f"weight_{i}": variable for i, variable in enumerate(copy.variables)}
    specs = [spec, *(tf.TensorSpec(variable.shape, variable.dtype, name) for name, variable in weights.items())]

    def logits_of(images, *values):
        with keras.StatelessScope(zip(copy.variables, values)):
            return {"logits": copy(images, training=False)}

    function = tf.function(logits_of, input_signature=specs, autograph=False)
    images = example_images(spec.shape[1:])
    try:
        converted, _ = tf2onnx.convert.from_function(
            function, input_signature=specs, opset=_OPSET, custom_op_handlers={"Erfc": (_erfc, [])}
        )
        _insert_weights(converted.graph, {name: keras.ops.convert_to_numpy(value) for name, value in weights.items()})
        _fold_constants(converted)
        _separate_pads_from_max_pools(converted.graph)
        content = converted.SerializeToString()
        # A conversion may succeed and still produce an invalid file, so load and run it.
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (logits,) = session.run(["logits"], {"images": images})
    except Exception as error:  # tf2onnx, onnx and onnxruntime each have their own exception types
        raise _cannot_convert("tf2onnx", model, error) from error
    return _write_compared(path, content, model, images, logits)


def _erfc(graph, node, name, _):
    """Replaces erfc(x) of the exact GELU, which ONNX lacks, with 1 - erf(x)."""
    erf = graph.make_node("Erf", node.input, name=f"{name}_erf")
    one = graph.make_const(f"{name}_one", np.ones((), np.float32))
    outputs = node.output
    graph.remove_node(name)
    graph.make_node("Sub", [one.output[0], erf.output[0]], name=name, outputs=outputs)


def _insert_weights(graph, weights):
    """Replaces the inputs named in `weights` with initializers."""
    from onnx import numpy_helper

    images = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(images)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())


def _fold_constants(model):
    """Precomputes the nodes that depend only on weights, such as transposed kernels."""
    import onnxruntime
    from onnx import helper, numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    known = {"", *constants}
    folded, kept = [], []
    for node in graph.node:
        constant = known.issuperset(node.input)
        (folded if constant else kept).append(node)
        if constant:
            known.update(node.output)
    read = {name for node in kept for name in node.input}
    names = [name for node in folded for name in node.output if name in read]
    if names:
        outputs = [helper.make_empty_tensor_value_info(name) for name in names]
        inputs = [constants[name] for name in {name for node in folded for name in node.input} & constants.keys()]
        part = helper.make_graph(folded, "constants", [], outputs, inputs)
        content = helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)
        session = onnxruntime.InferenceSession(content.SerializeToString(), providers=["CPUExecutionProvider"])
        values = zip(names, session.run(names, {}))
        constants |= {name: numpy_helper.from_array(value, name) for name, value in values}
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensor for name, tensor in constants.items() if name in read)


def _separate_pads_from_max_pools(graph):
    """Inserts a maximum with the lowest float, which is an identity, between every Pad and MaxPool."""
    # Otherwise, onnxruntime (1.31) fuses both nodes and pads with minus infinity, but BiT ResNets pad with zeros.
    from onnx import helper

    pads = {output for node in graph.node if node.op_type == "Pad" for output in node.output}
    for i, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "MaxPool" and node.input[0] in pads:
            lowest, separated = f"{node.name}_lowest", f"{node.name}_input"
            graph.initializer.append(helper.make_tensor(lowest, 1, (), [np.finfo(np.float32).min]))  # 1: FLOAT
            graph.node.insert(i, helper.make_node("Max", [node.input[0], lowest], [separated], name=separated))
            node.input[0] = separated


def example_images(image_shape, count=8):
    """Returns deterministic smooth noise in [-1, 1], float32 `(count, H, W, C)`."""
    height, width, channels = image_shape
    noise = np.random.default_rng(0).uniform(-1, 1, (count, 5, 7, channels)).astype("float32")
    return keras.ops.convert_to_numpy(keras.ops.image.resize(noise, (height, width), data_format="channels_last"))


def compare(path, size_bytes, model, images, logits):
    """Returns the `ExportReport` for a conversion's `logits`, or raises a `ValueError` if they are invalid."""
    expected = keras.ops.convert_to_numpy(keras.ops.cast(model(images, training=False), "float32"))
    if logits.shape != expected.shape or not np.isfinite(logits).all():
        raise ValueError(
            f"The converted model must return finite logits of shape {expected.shape}. "
            f"Received: shape={logits.shape}, finite={bool(np.isfinite(logits).all())}"
        )
    difference, same = float(np.abs(logits - expected).max()), logits.argmax(-1) == expected.argmax(-1)
    weights_bytes = 4 * model.count_params()
    return ExportReport(str(path), size_bytes, weights_bytes, difference, float(np.ptp(expected)), float(same.mean()))


def _write_compared(path, content, model, images, logits):
    report = compare(path, len(content), model, images, logits)
    explained = files.explained_errors("The file cannot be written", "Choose another path.", f"path={path!r}")
    with explained, files.atomic_write(path, "wb") as file:
        file.write(content)
    return report


def _inference_copy(model, path, ending, format_name):
    """Checks the arguments; returns the path, an inference copy of the model, and the spec of its images."""
    path = os.fspath(path)
    if not path.endswith(ending):
        raise ValueError(f'`path` must end in "{ending}". Received: path={path!r}')
    require_tensorflow(format_name)
    if is_naflex(model):
        raise ValueError(f"A NaFlex model can only be exported as a SavedModel. Received: model={model.name!r}")
    spec = tf.TensorSpec((None, *check_images_known(model)), tf.float32, "images")
    return path, inference_copy(model), spec


def _cannot_convert(converter, model, error):
    return ValueError(f"{converter} cannot convert the model ({first_line(error)}). Received: model={model.name!r}")
