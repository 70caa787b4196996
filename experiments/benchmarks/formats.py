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
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import format_files
import format_loaders
import formats_worker
from absl import app, flags, logging
from format_files import MODELS
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
LIMITS = ("float32", "bfloat16", "int8")
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
        return format_files.prepare(FLAGS.models[0], FLAGS.formats, folder)
    if FLAGS.worker:
        return formats_worker.serve_format(
            lambda: format_loaders.load(FLAGS.worker, folder), folder
        )
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
