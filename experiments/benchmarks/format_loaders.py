"""Loads the files of `format_files.py` in TensorFlow, LiteRT, ONNX Runtime and OpenVINO.

`formats_worker.py` loads timm. Functions import the libraries, so that the peak memory of a process
includes no unused ones.
"""

import functools
import json
import os

from format_files import products
from vit_models import keras_hub_model


def load_limits(folder):
    """Returns `run(precision, batch)`, which computes the matrix products of the blocks for `batch`
    images."""
    import numpy as np
    import tensorflow as tf

    from keras_vit.export.litert_file import LITERT

    sizes = json.loads((folder / "sizes.json").read_text())
    runs = {
        dtype: tf.function(products(sizes, dtype), autograph=False)
        for dtype in ("float32", "bfloat16")
    }
    int8 = LITERT.runner((folder / "limit_int8").read_bytes())
    shape = sizes["tokens"], sizes["hidden_size"]

    @functools.cache
    def tokens(batch):
        random = np.random.default_rng(0)
        return random.normal(0, 0.01, (batch, *shape)).astype("float32")

    def run(precision, batch):
        if precision == "int8":
            return int8(tokens(batch))
        return runs[precision](tf.constant(tokens(batch)))["outputs"].numpy()

    return run


def load_tensorflow(name, folder):
    import keras
    import tensorflow as tf

    versions = f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
    if name.startswith("saved_model"):
        return load_saved_model(folder / name), versions
    if name == "keras_hub":
        import keras_hub

        model = keras_hub_model(**json.loads((folder / "sizes.json").read_text()))
        versions = f"keras-hub {keras_hub.__version__}, {versions}"
    else:
        import keras_vit

        model = keras_vit.load_keras_file(folder / "model.keras", compile=False)

    @tf.function(autograph=False, jit_compile=name.endswith("xla") or None)
    def logits(images):
        return model(images, training=False)

    return lambda images: logits(tf.constant(images)).numpy(), versions


def load_saved_model(path):
    """Returns a function that computes the logarithm of the probabilities; it equals the logits
    plus a constant, which the comparison removes."""
    import numpy as np
    import tensorflow as tf

    signature = tf.saved_model.load(str(path)).signatures["tensor"]
    return lambda images: np.log(signature(images=tf.constant(images))["probabilities"].numpy())


def load_litert(name, folder):
    import tensorflow as tf

    from keras_vit.export.litert_file import LITERT

    return LITERT.runner((folder / name).read_bytes()), f"LiteRT of TensorFlow {tf.__version__}"


def load_onnx(name, folder):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count()
    session = onnxruntime.InferenceSession(
        folder / name, options, providers=["CPUExecutionProvider"]
    )
    versions = f"ONNX Runtime {onnxruntime.__version__}"
    return lambda images: session.run(None, {"images": images})[0], versions


def load_openvino(name, folder):
    """Loads the ONNX file in OpenVINO."""
    import openvino

    core = openvino.Core()
    options = {"INFERENCE_PRECISION_HINT": "bf16" if name.endswith("bfloat16") else "f32"}
    run = core.compile_model(core.read_model((folder / name).read_bytes()), "CPU", options)
    return lambda images: run(images)[0], f"OpenVINO {openvino.__version__}"


def load(name, folder):
    """Returns `(function, versions)`; see `formats_worker.serve_format`."""
    if name == "limits":
        return load_limits(folder), ""
    loaders = {"onnx": load_onnx, "litert": load_litert, "openvino": load_openvino}
    return loaders.get(name.partition("_")[0], load_tensorflow)(name, folder)
