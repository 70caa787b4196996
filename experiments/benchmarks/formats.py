"""Compares the export formats of a Vision Transformer, and other libraries, on the CPU.

    pip install -e ".[onnx]" openvino
    KERAS_VIT_TORCH_PYTHON=torch-env/bin/python \\
        python experiments/benchmarks/formats.py --output=formats.csv
    python experiments/benchmarks/formats.py --models=Ti/16 --rounds=2 --formats=keras,litert_int8

All formats of a model except keras_hub have the same random weights.
`experiments/real/low_precision.py` measures how much accuracy a trained model loses in low
precision. Each format runs in its own process. Up to `--at_once` formats alternate, and rates are
medians over the rounds. The columns:

    share         rate divided by the rate of the blocks' matrix products alone, measured in the
                  same precision and rounds. TensorFlow computes the products in float32 and
                  bfloat16. For int8, LiteRT uses int8 for products with weights, and float32 for
                  the products of attention.
    MB of memory  peak memory of the process, including its libraries
    difference    largest difference of a logit from Keras in float32, relative to the range of the
                  logits
    same class    fraction of 16 images of smooth noise with the same prediction as Keras in float32

OpenVINO runs the ONNX file. SavedModels named "any" are exported with `device="any"`, others with
`device="cpu"`. "frozen" and "fpmath" name an environment variable of TensorFlow; see `ENVIRONMENT`.
"timm_bfloat16_frozen" compiles timm with constant weights and with max-autotune.

The environment variable KERAS_VIT_TORCH_PYTHON is the path of the Python that runs timm. keras-hub,
OpenVINO and timm are skipped if they are not installed.
"""

import csv
import functools
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# Functions import the libraries, so that the peak memory of a process includes no unused ones.
import formats_worker
from absl import app, flags, logging
from vit_models import keras_hub_model
from workers import Worker, in_turns

FLAGS = flags.FLAGS
FORMATS = (
    "keras",
    "keras_xla",
    "saved_model",
    "saved_model_bfloat16",
    "saved_model_any",
    "saved_model_any_bfloat16",
    "saved_model_fpmath_bfloat16",
    "saved_model_frozen",
    "saved_model_frozen_bfloat16",
    "openvino",
    "openvino_bfloat16",
    "onnx",
    "onnx_int8",
    "litert",
    "litert_int8",
    "keras_hub",
    "timm",
    "timm_bfloat16",
    "timm_compile",
    "timm_bfloat16_compile",
    "timm_bfloat16_frozen",
)
# Variables of the environment: bfloat16 products of float32 arrays in TensorFlow, and constant
# weights in TensorFlow and PyTorch.
ENVIRONMENT = {
    "saved_model_fpmath_bfloat16": {"TF_SET_ONEDNN_FPMATH_MODE": "BF16"},
    "saved_model_frozen": {"TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1"},
    "saved_model_frozen_bfloat16": {"TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1"},
    "timm_bfloat16_frozen": {"TORCHINDUCTOR_FREEZING": "1"},
}
BFLOAT16_SAVED_MODELS = (
    "saved_model_bfloat16",
    "saved_model_any_bfloat16",
    "saved_model_frozen_bfloat16",
)
LIMITS = ("float32", "bfloat16", "int8")
MODELS = {"Ti/16": "ViT_Ti16", "S/16": "ViT_S16", "B/16": "ViT_B16", "L/16": "ViT_L16", "test": ""}
COLUMNS = (
    "model",
    "format",
    "batch size",
    "images/s",
    "share",
    "MB of memory",
    "MB of file",
    "difference",
    "same class",
    "versions",
    "processor",
)


def define_flags():
    flags.DEFINE_list(
        "models",
        ["S/16", "B/16", "L/16"],
        f"One or more of {', '.join(MODELS)}; test is a tiny model.",
    )
    flags.DEFINE_list("formats", list(FORMATS), f"One or more of {', '.join(FORMATS)}.")
    flags.DEFINE_list("batch_sizes", ["1", "8"], "Batch sizes to measure.")
    flags.DEFINE_integer("rounds", 6, "Measured rounds, after one warm-up round.", lower_bound=1)
    flags.DEFINE_integer(
        "at_once",
        6,
        "Number of formats in memory at once, in addition to the matrix products.",
        lower_bound=1,
    )
    flags.DEFINE_string("output", "", "CSV file for the results.")
    flags.DEFINE_string("worker", "", "Internal: run as the process of one format.")
    flags.DEFINE_string("folder", "", "Internal: the folder of the files.")


def prepare(folder):
    """Writes a model, its exports and the other files that the worker processes read to a
    folder."""
    import keras
    import numpy as np

    import keras_vit
    from keras_vit.export import comparison

    keras.utils.set_random_seed(0)
    name = MODELS[FLAGS.models[0]]
    model = getattr(keras_vit, name)(weights=None) if name else tiny_model()
    # The new head is zero, which would make all logits equal.
    model.head.kernel.assign(np.random.default_rng(0).normal(0, 0.05, model.head.kernel.shape))
    images, logits, _ = comparison.reference(
        model, comparison.example_images(model.input_shape[1:], 16)
    )
    np.save(folder / "images.npy", images)
    np.save(folder / "logits.npy", logits)
    model.save(folder / "model.keras")
    sizes = {
        "hidden_size": model.hidden_size,
        "mlp_dim": model.arguments["mlp_dim"],
        "num_layers": len(model.blocks),
        "num_heads": model.arguments["num_heads"],
        "tokens": 1 + model.grid[0] * model.grid[1],
        "patch_size": model.patch_size,
        "image_size": model.input_shape[1],
        "classes": model.output_shape[-1],
    }
    (folder / "sizes.json").write_text(json.dumps(sizes))
    for name in FLAGS.formats:
        write_export(model, name, folder, images)
    if any(name.startswith("timm") for name in FLAGS.formats):
        keras_vit.checkpoints.save(model, folder / "timm_weights", format="timm")
    write_int8_products(sizes, folder)


def tiny_model():
    """Returns a model of two small blocks, for trying this program."""
    import keras_vit

    return keras_vit.VisionTransformer(
        input_shape=(32, 32, 3),
        patch_size=8,
        num_layers=2,
        hidden_size=64,
        mlp_dim=128,
        num_heads=2,
        classes=10,
    )


def write_export(model, name, folder, images):
    """Writes the file or the SavedModel of a format to a folder; nothing for formats that are not
    exports."""
    from keras_vit import export
    from keras_vit.export.file_format import check_convertible
    from keras_vit.export.litert_file import LITERT
    from keras_vit.export.onnx_file import ONNX

    path = folder / name
    if name.startswith("saved_model"):
        written = export.saved_model(
            model,
            folder,
            signatures=["tensor"],
            precision="bfloat16" if name in BFLOAT16_SAVED_MODELS else "float32",
            device="any" if "any" in name else "cpu",
        )
        os.rename(written, path)
    elif name.startswith(("litert", "onnx", "openvino")):
        form = LITERT if name.startswith("litert") else ONNX
        weights = "int8" if name in ("litert_int8", "onnx_int8") else "none"
        spec = check_convertible(model, name)
        path.write_bytes(form.content(model, spec, weights, images))


def write_int8_products(sizes, folder):
    """Writes a LiteRT model in int8 that computes only the matrix products of the blocks."""
    import tensorflow as tf

    spec = tf.TensorSpec((None, sizes["tokens"], sizes["hidden_size"]), tf.float32, "tokens")
    function = tf.function(products(sizes, "float32"), input_signature=[spec], autograph=False)
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [function.get_concrete_function()], tf.Module()
    )
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    (folder / "limit_int8").write_bytes(converter.convert())


def products(sizes, dtype):
    """Returns a function that applies the matrix products of all blocks, with random kernels, to
    tokens `(B, N, D)`."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    heads = sizes["num_heads"]
    size = sizes["hidden_size"]
    hidden = sizes["mlp_dim"]
    shapes = ((size, size), (size, 2 * size), (size, size), (size, hidden), (hidden, size))

    def kernel(rows, columns):
        return tf.constant(random.normal(0, rows**-0.5, (rows, columns)), dtype)

    blocks = [[kernel(*shape) for shape in shapes] for _ in range(sizes["num_layers"])]

    def flat(x):  # a 2-D product is faster
        return tf.reshape(x, (-1, size))

    def split(x, count, parts):
        x = tf.reshape(x, (-1, count, parts * heads, size // heads))
        return tf.split(tf.transpose(x, (0, 2, 1, 3)), parts, 1)

    def compute(tokens):
        x = tf.cast(tokens, dtype)
        for i, (query, key_value, output, up, down) in enumerate(blocks):
            is_last = i == len(blocks) - 1
            queries = x[:, :1] if is_last else x  # the last block computes only the class token
            (q,) = split(flat(queries) @ query, queries.shape[1], 1)
            (k, v) = split(flat(x) @ key_value, x.shape[1], 2)
            attended = flat(tf.transpose(tf.matmul(q, k, transpose_b=True) @ v, (0, 2, 1, 3)))
            x = tf.reshape(attended @ output @ up @ down, (-1, queries.shape[1], size))
        return {"outputs": tf.cast(x, "float32")}

    return compute


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
    shape = (64, sizes["tokens"], sizes["hidden_size"])
    tokens = np.random.default_rng(0).normal(0, 0.01, shape).astype("float32")

    def run(precision, batch):
        inputs = np.resize(tokens, (batch, *shape[1:]))
        if precision == "int8":
            return int8(inputs)
        return runs[precision](tf.constant(inputs))["outputs"].numpy()

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
    if name == "limits":
        return load_limits(folder), ""
    loaders = {"onnx": load_onnx, "litert": load_litert, "openvino": load_openvino}
    return loaders.get(name.partition("_")[0], load_tensorflow)(name, folder)


def start_worker(name, model, folder):
    """Starts a process that runs one format or, for "limits", the matrix products."""
    command = script(name, model, folder)
    if name.startswith("timm"):
        python = os.environ.get("KERAS_VIT_TORCH_PYTHON", sys.executable)
        command = [python, formats_worker.__file__, name, str(folder), str(os.cpu_count())]
    environment = {"OMP_NUM_THREADS": str(os.cpu_count()), **ENVIRONMENT.get(name, {})}
    return Worker(name, command, **environment)


def script(worker, model, folder):
    """Returns a command that runs this script as a child process."""
    return [
        sys.executable,
        *sys.argv,
        f"--models={model}",
        f"--folder={folder}",
        f"--worker={worker}",
    ]


def precision_of(name):
    return next((precision for precision in ("bfloat16", "int8") if precision in name), "float32")


def measure(names, model, folder, batch_sizes):
    """Returns `{format: facts}` of the formats that run, and `{(format, batch size): [(seconds,
    MB), ...]}`.

    The measurements of the matrix products have a precision, such as "float32", in place of the
    format.
    """
    workers = {"limits": start_worker("limits", model, folder)}
    for name in names:
        try:
            workers[name] = start_worker(name, model, folder)
        except RuntimeError as error:  # a format that fails must not stop the others
            print(f"{model}, {name} was not run: {error}", flush=True)
    facts = {name: worker.facts for name, worker in workers.items() if name != "limits"}
    runs = {}
    for size in batch_sizes:
        for precision in LIMITS:
            runs[precision, size] = functools.partial(workers["limits"].query, precision, size)
        for name in facts:
            runs[name, size] = functools.partial(workers[name].query, precision_of(name), size)
    in_turns(runs, 1)  # warms up
    answers = in_turns(runs, FLAGS.rounds)
    for worker in workers.values():
        worker.close()
    return facts, answers


def rows_of(model, names, folder, batch_sizes):
    """Measures formats of a model in alternation, and returns their rows of the table."""
    facts, answers = measure(names, model, folder, batch_sizes)
    rows = []
    for name, size in itertools.product(facts, batch_sizes):
        seconds, limit = (
            statistics.median(answer[0] for answer in answers[key, size])
            for key in (name, precision_of(name))
        )
        row = {
            "model": model,
            "format": name,
            "batch size": size,
            "images/s": size / seconds,
            "share": limit / seconds,
            "MB of memory": max(answer[1] for answer in answers[name, size]),
            "MB of file": size_of(folder / name),
            "processor": processor(),
            **facts[name],
        }
        if name == "keras_hub":  # has other weights, so its outputs are not comparable
            row |= {"difference": "", "same class": ""}
        rows.append({column: shown(value) for column, value in row.items()})
        print(" | ".join(str(rows[-1][column]) for column in COLUMNS[:-2]), flush=True)
    return rows


def shown(value):
    return f"{value:.4g}" if isinstance(value, float) else value


def size_of(path):
    """Returns the size of a file, or of a SavedModel's graph and weights, in MB; "" if the path
    does not exist."""
    if not path.exists():
        return ""
    parts = [path] if path.is_file() else [path / "saved_model.pb", *path.glob("variables/*")]
    return sum(part.stat().st_size for part in parts) / 1e6


def processor():
    """Returns the name of the processor and the number of threads used."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )
    return f"{name or platform.processor()}, {os.cpu_count()} threads"


def main(_):
    logging.set_verbosity(logging.WARNING)
    folder = Path(FLAGS.folder)
    if FLAGS.worker == "prepare":
        return prepare(folder)
    if FLAGS.worker:
        return formats_worker.serve_format(lambda: load(FLAGS.worker, folder), folder)
    for flag, known in (("formats", FORMATS), ("models", MODELS)):
        if unknown := set(FLAGS[flag].value) - set(known):
            raise app.UsageError(
                f"--{flag} must be among {', '.join(known)}. Received: {', '.join(unknown)}"
            )
    batch_sizes = [int(size) for size in FLAGS.batch_sizes]
    print(f"{processor()}\n" + " | ".join(COLUMNS[:-2]))
    rows = []
    for model in FLAGS.models:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(script("prepare", model, folder), check=True, stdout=sys.stderr)
            for start in range(0, len(FLAGS.formats), FLAGS.at_once):
                group = FLAGS.formats[start : start + FLAGS.at_once]
                rows += rows_of(model, group, Path(folder), batch_sizes)
    if FLAGS.output:
        with open(FLAGS.output, "w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    define_flags()
    app.run(main)
