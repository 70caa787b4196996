"""Exports models to LiteRT and ONNX, runs the files, and compares their logits with the model's."""

import dataclasses
import functools
import os
import platform
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_vit import files
from keras_vit.export.graph import inference_copy, write_graph
from keras_vit.models.any_model import check_images_known, takes_any_size
from keras_vit.terminal import first_line

_OPSET = 18  # the newest opset that tf2onnx writes
# Extensions of the instruction set for 8-bit products, as /proc/cpuinfo names them, best first.
_INSTRUCTIONS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512bw", "avx2", "i8mm", "asimddp")


@functools.cache
def instructions() -> str:
    """Returns this machine's architecture and its best extension for 8-bit products, such as
    "x86_64, avx512_vnni"."""
    try:
        available = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:  # not Linux
        available = []
    best = [name for name in _INSTRUCTIONS if name in available][:1]
    return ", ".join([platform.machine(), *best])


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """A comparison of a converted model with the original.

    Attributes:
        path: path of the written file or SavedModel.
        size_bytes: size of the file, or of the SavedModel's graph and weights, in bytes.
        weights_bytes: size of the model's weights in float32, in bytes.
        largest_difference: largest absolute difference between corresponding outputs of both
            models.
        logits_range: difference between the original's largest and smallest output; a scale for
            `largest_difference`.
        same_class: fraction of images, in [0, 1], for which both models predict the same class.
        cosine: cosine similarity between the outputs of both models, averaged over the images.
        images: description of the images, such as "8 images of noise".
        instructions: architecture of the machine that ran the comparison, and its extension of the
            instruction set for 8-bit products, such as "x86_64, avx512_vnni".
    """

    path: str
    size_bytes: int
    weights_bytes: int
    largest_difference: float
    logits_range: float
    same_class: float
    cosine: float
    images: str
    instructions: str = dataclasses.field(default_factory=instructions)

    def __str__(self):
        return (
            f"{self.path}: {self.size_bytes / 1e6:.2f} MB "
            f"({self.size_bytes / self.weights_bytes:.2f} of float32), outputs differ by at most "
            f"{self.largest_difference:.2g} (their range is {self.logits_range:.2g}), same class "
            f"for {100 * self.same_class:.3g} % of {self.images}, mean cosine {self.cosine:.5f}; "
            f"measured on {self.instructions}"
        )


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
    _check_arguments(path, ".tflite", quantization)
    content = litert_content(model, quantization)
    return _write_compared(path, content, model, reference(model, images), litert_runner)


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
    _check_arguments(path, ".onnx", quantization)
    if quantization == "int8" and images is None:
        raise ValueError(
            "`images` (--calibrate) is required to calibrate int8 in ONNX. Received: images=None"
        )
    content = onnx_content(model)
    compared = reference(model, images)
    if quantization == "int8":
        content = quantize_onnx(content, compared[0])
    return _write_compared(path, content, model, compared, onnx_runner)


def litert_content(model, quantization):
    spec = check_convertible(model, "A LiteRT file")
    copy = inference_copy(model)
    with tempfile.TemporaryDirectory() as folder:
        write_graph(
            folder,
            copy,
            {"logits": (lambda images: {"logits": copy(images, training=False)}, spec)},
        )
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["logits"])
        if quantization == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        try:
            return converter.convert()
        except Exception as error:  # LiteRT's converter has its own exception types
            raise _cannot_convert("LiteRT", model, error) from error


def litert_runner(content):
    """Returns a function that runs the content of a LiteRT file on images, float32 `(B, H, W,
    C)`."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # TensorFlow announces that its interpreter will move to another package
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


def onnx_content(model):
    spec = check_convertible(model, "An ONNX file")
    copy = inference_copy(model)
    try:
        import onnxruntime  # noqa: F401
        import tf2onnx
    except ImportError as error:
        raise ImportError(
            f'{error.name} is not installed: pip install "keras_vit[onnx]"', name=error.name
        ) from error
    # tf2onnx copies constants in each of its passes, so pass the weights as inputs during the
    # conversion.
    weights = {f"weight_{i}": variable for i, variable in enumerate(copy.variables)}
    specs = [
        spec,
        *(
            tf.TensorSpec(variable.shape, variable.dtype, name)
            for name, variable in weights.items()
        ),
    ]

    def logits_of(images, *values):
        with keras.StatelessScope(zip(copy.variables, values)):
            return {"logits": copy(images, training=False)}

    function = tf.function(logits_of, input_signature=specs, autograph=False)
    try:
        converted, _ = tf2onnx.convert.from_function(
            function, input_signature=specs, opset=_OPSET, custom_op_handlers={"Erfc": (_erfc, [])}
        )
        _fold_weights(
            converted, {name: keras.ops.convert_to_numpy(value) for name, value in weights.items()}
        )
        _separate_pads_from_max_pools(converted.graph)
        content = converted.SerializeToString()
        # A conversion may succeed and still produce an invalid file, so load and run it.
        onnx_runner(content)(example_images(spec.shape[1:], 1))
        return content
    except Exception as error:  # tf2onnx, onnx and onnxruntime each have their own exception types
        raise _cannot_convert("tf2onnx", model, error) from error


def onnx_runner(content):
    """Returns a function that runs the content of an ONNX file on images, float32 `(B, H, W,
    C)`."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda images: session.run(["logits"], {"images": images})[0]


def quantize_onnx(content, images):
    """Returns the content of an ONNX file with int8 kernels, calibrated on every second image; see
    `onnx`."""
    import onnx
    import onnxruntime
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        batches = iter([{"images": image[None]} for image in images[::2]])

        def get_next(self):
            return next(self.batches, None)

    kinds = ["MatMul", "Gemm", "Conv"]
    with tempfile.TemporaryDirectory() as folder:
        # Fuse each product with its bias before quantization. If onnxruntime fuses them later, it
        # computes in float32.
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = f"{folder}/fused.onnx"
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        model = onnx.load(f"{folder}/fused.onnx")
        nodes = model.graph.node
        kernels = {tensor.name for tensor in model.graph.initializer}
        products = [
            node.name
            for node in nodes
            if node.op_type in kinds and kernels.intersection(node.input)
        ]
        quantization.quant_utils.add_pre_process_metadata(
            model
        )  # suppresses the advice to preprocess the model
        quantization.quantize_static(
            model,
            f"{folder}/int8.onnx",
            Reader(),
            nodes_to_quantize=products,
            per_channel=True,
            # 7-bit kernels, because sums of two 8-bit products overflow without VNNI
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            extra_options={"OpTypesToExcludeOutputQuantization": kinds},
        )
        with open(f"{folder}/int8.onnx", "rb") as file:
            return file.read()


def _erfc(graph, node, name, _):
    """Replaces erfc(x), which the exact GELU uses and ONNX lacks, with 1 - erf(x)."""
    erf = graph.make_node("Erf", node.input, name=f"{name}_erf")
    one = graph.make_const(f"{name}_one", np.ones((), np.float32))
    outputs = node.output
    graph.remove_node(name)
    graph.make_node("Sub", [one.output[0], erf.output[0]], name=name, outputs=outputs)


def _fold_weights(model, weights):
    """Replaces the inputs named in `weights` with constants, and precomputes nodes that depend only
    on constants."""
    import onnxruntime
    from onnx import helper, numpy_helper

    graph = model.graph
    images = [value for value in graph.input if value.name not in weights]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {name: numpy_helper.from_array(value, name) for name, value in weights.items()}
    known = {"", *constants}
    folded = []
    kept = []
    for node in graph.node:
        constant = known.issuperset(node.input)
        (folded if constant else kept).append(node)
        if constant:
            known.update(node.output)
    read = {name for node in kept for name in node.input}
    names = [name for node in folded for name in node.output if name in read]
    if names:
        outputs = [helper.make_empty_tensor_value_info(name) for name in names]
        inputs = [
            constants[name]
            for name in {name for node in folded for name in node.input} & constants.keys()
        ]
        part = helper.make_graph(folded, "constants", [], outputs, inputs)
        content = helper.make_model(
            part, opset_imports=model.opset_import, ir_version=model.ir_version
        )
        session = onnxruntime.InferenceSession(
            content.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        values = zip(names, session.run(names, {}))
        constants |= {name: numpy_helper.from_array(value, name) for name, value in values}
    del graph.input[:], graph.node[:], graph.initializer[:]
    graph.input.extend(images)
    graph.node.extend(kept)
    graph.initializer.extend(tensor for name, tensor in constants.items() if name in read)


def _separate_pads_from_max_pools(graph):
    """Inserts a maximum with the lowest float, which changes nothing, between each Pad and a
    MaxPool that follows."""
    # Otherwise, onnxruntime (1.31) fuses both nodes and pads with minus infinity, but the
    # ResNets pad with zeros by default.
    from onnx import helper

    pads = {output for node in graph.node if node.op_type == "Pad" for output in node.output}
    for i, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "MaxPool" and node.input[0] in pads:
            lowest = f"{node.name}_lowest"
            separated = f"{node.name}_input"
            graph.initializer.append(
                helper.make_tensor(lowest, 1, (), [np.finfo(np.float32).min])
            )  # 1: FLOAT
            graph.node.insert(
                i, helper.make_node("Max", [node.input[0], lowest], [separated], name=separated)
            )
            node.input[0] = separated


def example_images(image_shape, count=8):
    """Returns deterministic smooth noise in [-1, 1], float32 `(count, H, W, C)`."""
    height, width, channels = image_shape
    noise = np.random.default_rng(0).uniform(-1, 1, (count, 5, 7, channels)).astype("float32")
    return keras.ops.convert_to_numpy(
        keras.ops.image.resize(noise, (height, width), data_format="channels_last")
    )


def count_of(images):
    return "the given image" if len(images) == 1 else f"the {len(images):,} given images"


def reference(model, images=None):
    """Returns the images (smooth noise for None), the model's logits, and a description of the
    images for reports."""
    shape = check_images_known(model)
    name = "8 images of noise" if images is None else count_of(images)
    images = example_images(shape) if images is None else np.asarray(images, np.float32)
    if not len(images) or images.shape[1:] != shape:
        raise ValueError(
            f"`images` must be (N, {', '.join(map(str, shape))}). Received: shape={images.shape}"
        )
    outputs = in_batches(lambda batch: model(batch, training=False), images)
    return images, outputs, name


def in_batches(function, images, size=16):
    """Calls a function on batches of images; returns its outputs `(N, ...)` in float32."""
    parts = [function(images[start : start + size]) for start in range(0, len(images), size)]
    return np.concatenate(
        [keras.ops.convert_to_numpy(keras.ops.cast(part, "float32")) for part in parts]
    )


def saved_model_probabilities(path, images):
    """Returns the probabilities `(N, classes)` that the signature `tensor` of a SavedModel
    computes."""
    signature = tf.saved_model.load(path).signatures["tensor"]
    return in_batches(lambda part: signature(images=tf.constant(part))["probabilities"], images)


def saved_model_size(path):
    """Returns the size of a SavedModel's graph and weights in bytes."""
    parts = tf.io.gfile.glob([f"{path}/saved_model.pb", f"{path}/variables/*"])
    return sum(tf.io.gfile.stat(part).length for part in parts)


def compare(path, size_bytes, model, reference, outputs):
    """Returns the `ExportReport` for a conversion's outputs, or raises a `ValueError` if they are
    invalid."""
    _, expected, name = reference
    if outputs.shape != expected.shape or not np.isfinite(outputs).all():
        raise ValueError(
            f"The converted model must return finite logits of shape {expected.shape}. "
            f"Received: shape={outputs.shape}, finite={bool(np.isfinite(outputs).all())}"
        )
    same = np.mean(outputs.argmax(-1) == expected.argmax(-1))
    norms = np.linalg.norm(outputs, axis=-1) * np.linalg.norm(expected, axis=-1)
    cosine = np.mean(np.sum(outputs * expected, -1) / np.maximum(norms, 1e-30))
    difference = float(np.abs(outputs - expected).max())
    size = 4 * model.count_params()
    return ExportReport(
        str(path),
        size_bytes,
        size,
        difference,
        float(np.ptp(expected)),
        float(same),
        float(cosine),
        name,
    )


def _write_compared(path, content, model, reference, runner):
    report = compare(
        path, len(content), model, reference, in_batches(runner(content), reference[0])
    )
    explained = files.explained_errors(
        "The file cannot be written", "Choose another path.", f"path={str(path)!r}"
    )
    with explained, files.atomic_write(path, "wb") as file:
        file.write(content)
    return report


def _check_arguments(path, ending, quantization):
    if not os.fspath(path).endswith(ending):
        raise ValueError(f'`path` must end in "{ending}". Received: path={os.fspath(path)!r}')
    if quantization not in ("none", "int8"):
        raise ValueError(
            f"`quantization` must be one of none, int8. Received: quantization={quantization!r}"
        )


def check_convertible(model, format_name):
    """Returns the `TensorSpec` of a model's images.

    Raises a `ValueError` if the backend is not TensorFlow, the model takes images of any size or
    has several outputs, or its image size is unknown."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"{format_name} is converted from a TensorFlow graph; save the model as .keras and "
            "export it with KERAS_BACKEND=tensorflow. Received: "
            f"backend={keras.backend.backend()!r}"
        )
    if takes_any_size(model):
        raise ValueError(
            "A model for images of any size can only be exported as a SavedModel. Received: "
            f"model={model.name!r}"
        )
    shape = (None, *check_images_known(model))
    outputs = keras.tree.flatten(model.compute_output_spec(keras.KerasTensor(shape)))
    if len(outputs) > 1:
        raise ValueError(
            f"The model must have one output. Received: {len(outputs)} outputs, "
            f"model={model.name!r}"
        )
    return tf.TensorSpec(shape, tf.float32, "images")


def _cannot_convert(converter, model, error):
    return ValueError(
        f"{converter} cannot convert the model ({first_line(error)}). Received: "
        f"model={model.name!r}"
    )
