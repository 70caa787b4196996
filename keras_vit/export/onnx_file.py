"""ONNX files."""

import os
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_vit.export.comparison import ExportReport
from keras_vit.export.file_format import Format

_OPSET = 18  # the newest opset that tf2onnx writes


def onnx(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    quantization: str = "none",
    images: np.ndarray | None = None,
) -> ExportReport:
    """Writes an ONNX file with the input `images` and the output `logits`.

    The images are float32 `(B, H, W, C)`, preprocessed for the model.

    Args:
        model: a `keras.Model` with one output, such as logits or the features of a `FeatureModel`,
            of any precision and strategy; an unquantized file computes in float32.
        path: the file to write, ending in ".onnx"; an existing file is replaced atomically.
        quantization: "none", or "int8" to compute products and convolutions with kernels in 8-bit
            integers. Kernels are scaled per channel to 7 bits, because sums of 8-bit products
            overflow on x86 processors without VNNI. Activations are scaled by their range on every
            second image of `images`. Other operations use float32.
        images: images for the report and for "int8", float32 `(N, H, W, C)`, preprocessed for the
            model. None uses smooth noise, but is not allowed for "int8".

    Returns:
        An `ExportReport` that compares the model with the file in onnxruntime.

    Raises:
        ValueError: an argument is invalid, the file cannot be written, the backend is not
            TensorFlow, or the model cannot be converted.
        ImportError: tf2onnx or onnxruntime is not installed.
    """
    return ONNX.write(model, path, quantization, images)


def _convert(model, spec, quantization, images):
    import tf2onnx

    # tf2onnx copies constants in each of its passes, so pass the weights as inputs during the
    # conversion.
    weights = {f"weight_{i}": variable for i, variable in enumerate(model.variables)}
    specs = [spec]
    for name, variable in weights.items():
        specs.append(tf.TensorSpec(variable.shape, variable.dtype, name))

    def logits_of(images, *values):
        with keras.StatelessScope(zip(model.variables, values)):
            return {"logits": model(images, training=False)}

    function = tf.function(logits_of, input_signature=specs, autograph=False)
    converted, _ = tf2onnx.convert.from_function(
        function, input_signature=specs, opset=_OPSET, custom_op_handlers={"Erfc": (_erfc, [])}
    )
    _store_weights(converted.graph, weights)
    _separate_pads_from_max_pools(converted.graph)
    converted = _optimized(converted)
    if quantization == "int8":
        return _quantized(converted, images)
    return converted.SerializeToString()


def _runner(content):
    """Returns a function that runs the content of an ONNX file on images, which are float32
    `(B, H, W, C)`."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda images: session.run(["logits"], {"images": images})[0]


def _optimized(model):
    """Returns an ONNX model with constant expressions folded, and each product fused with its bias.

    If onnxruntime fused them after a quantization, it would compute in float32.
    """
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        optimized = onnx.load(options.optimized_model_filepath)
    # onnxruntime declares all operator sets that it knows, but other runtimes may not know them.
    domains = {node.domain for node in optimized.graph.node}
    imports = [imported for imported in optimized.opset_import if imported.domain in domains]
    del optimized.opset_import[:]
    optimized.opset_import.extend(imports)
    return optimized


def _quantized(model, images):
    """Returns the content of an ONNX file with int8 kernels, calibrated on every second image; see
    `onnx`."""
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        batches = iter([{"images": image[None]} for image in images[::2]])

        def get_next(self):
            return next(self.batches, None)

    kinds = ["MatMul", "Gemm", "Conv"]
    kernels = {tensor.name for tensor in model.graph.initializer}
    products = [
        node.name
        for node in model.graph.node
        if node.op_type in kinds and kernels.intersection(node.input)
    ]
    # Suppress the advice to preprocess the model.
    quantization.quant_utils.add_pre_process_metadata(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "int8.onnx")
        quantization.quantize_static(
            model,
            path,
            Reader(),
            nodes_to_quantize=products,
            per_channel=True,
            reduce_range=True,  # 7-bit kernels, see `onnx`
            activation_type=quantization.QuantType.QUInt8,
            extra_options={"OpTypesToExcludeOutputQuantization": kinds},
        )
        return path.read_bytes()


def _erfc(graph, node, name, _):
    """Replaces erfc(x), which the exact GELU uses and ONNX lacks, with 1 - erf(x)."""
    erf = graph.make_node("Erf", node.input, name=f"{name}_erf")
    one = graph.make_const(f"{name}_one", np.ones((), np.float32))
    outputs = node.output
    graph.remove_node(name)
    graph.make_node("Sub", [one.output[0], erf.output[0]], name=name, outputs=outputs)


def _store_weights(graph, weights):
    """Replaces the inputs of a graph that are named in `weights` with constants."""
    from onnx import numpy_helper

    images = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(images)
    graph.initializer.extend(
        numpy_helper.from_array(keras.ops.convert_to_numpy(variable), name)
        for name, variable in weights.items()
    )


def _separate_pads_from_max_pools(graph):
    """Inserts a maximum with the lowest float, which changes nothing, between each Pad and a
    MaxPool that follows."""
    from onnx import TensorProto, helper

    # Otherwise, onnxruntime (1.31) fuses both nodes and pads with minus infinity, but the ResNets
    # pad with zeros by default.
    pads = {output for node in graph.node if node.op_type == "Pad" for output in node.output}
    for i, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "MaxPool" and node.input[0] in pads:
            lowest = f"{node.name}_lowest"
            separated = f"{node.name}_input"
            value = [np.finfo(np.float32).min]
            graph.initializer.append(helper.make_tensor(lowest, TensorProto.FLOAT, (), value))
            graph.node.insert(
                i, helper.make_node("Max", [node.input[0], lowest], [separated], name=separated)
            )
            node.input[0] = separated


ONNX = Format(
    "ONNX",
    ".onnx",
    _convert,
    _runner,
    extra="onnx",
    packages=("tf2onnx", "onnxruntime"),
    calibrates=True,
)
