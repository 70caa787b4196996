"""Measures the export formats of a model on this machine and selects the fastest accurate one."""

import statistics
import time
from pathlib import Path

from keras_vit.export.comparison import (
    compare,
    in_batches,
    reference,
    saved_model_runner,
    saved_model_size,
)
from keras_vit.export.devices import chosen_device
from keras_vit.export.file_format import check_convertible
from keras_vit.export.graph import inference_copy, write_logits_graph
from keras_vit.export.litert_file import LITERT
from keras_vit.export.onnx_file import ONNX
from keras_vit.terminal import first_line

FILE_FORMATS = {
    "litert": (LITERT, "none"),
    "litert_int8": (LITERT, "int8"),
    "onnx": (ONNX, "none"),
    "onnx_int8": (ONNX, "int8"),
}
"""The format and the quantization of a file, by the value of `--format`."""
SAVED_MODELS = {"saved_model": "float32", "saved_model bfloat16": "bfloat16"}
"""The precision of a SavedModel, by the name in the table of `measure`."""
# The minimum share of images for which bfloat16 and int8 must predict the model's class.
SAME_CLASS = 0.99
_BATCH = 8  # maximum number of images in a timed batch


def measure(model, folder, images=None, write=print, seconds=2.0):
    """Writes a model to a folder in each format, measures each file, and prints a table with
    `write`.

    Returns `{name: (ExportReport, images per second)}`. `images`, float32 `(N, H, W, C)`, are used
    to compare outputs and to calibrate `onnx_int8`. Without images, noise is used to compare
    outputs. An error in the float32 SavedModel is raised; any other format that fails, whose
    packages are not installed or that needs images is skipped with a message.
    """
    spec = check_convertible(model, "A file")
    compared = reference(model, images)
    write(f"{'format':20}   images/s      MB  difference  same class, of {compared.description}")
    measurements = {}
    for name in (*SAVED_MODELS, *FILE_FORMATS):
        path = f"{folder}/{name.replace(' ', '_')}"
        try:
            run, size = _write(name, model, path, spec, images)
            report = compare(path, size, model, compared, in_batches(run, compared.images))
        except Exception as error:  # the runtimes have their own exception types
            if name == "saved_model":
                raise  # the other formats would fail too
            write(f"{name:20} skipped: {first_line(error)}")
            continue
        speed = _images_per_second(run, compared.images[:_BATCH], seconds)
        measurements[name] = report, speed
        difference = report.largest_difference / (report.logits_range or 1.0)
        same = "-" if report.same_class is None else f"{100 * report.same_class:.3g} %"
        write(f"{name:20} {speed:10,.1f} {size / 1e6:7.2f} {difference:11.2g} {same:>11}")
    return measurements


def _write(name, model, path, spec, images):
    """Writes a model in a format; returns a function that runs it on images, and the size in
    bytes."""
    if name in SAVED_MODELS:
        copy = inference_copy(model, SAVED_MODELS[name], chosen_device(None))
        write_logits_graph(path, copy, spec)
        return saved_model_runner(path, "logits", "logits"), saved_model_size(path)
    file_format, quantization = FILE_FORMATS[name]
    content = file_format.content(model, spec, quantization, images)
    return file_format.runner(content), Path(path).write_bytes(content)


def choose(measurements, calibrated):
    """Returns the fastest accurate format and the reason; `keras-vit export --help` describes the
    choice."""

    def obstacle(name):
        if not name.endswith(("int8", "bfloat16")):
            return ""
        same = measurements[name][0].same_class
        if same is None:
            return "its accuracy is unknown, because the model does not predict classes"
        if name.endswith("int8") and not calibrated:
            return "int8 is chosen only with --calibrate=FOLDER of real images"
        if same < SAME_CLASS:
            return (
                f"it predicts the same class for {100 * same:.3g} %, below {100 * SAME_CLASS:.0f} %"
            )
        return ""

    ranked = sorted(measurements, key=lambda name: -measurements[name][1])
    best = next(name for name in ranked if not obstacle(name))
    ratio = measurements[best][1] / measurements["saved_model"][1]
    reasons = [
        f"{best} is the fastest accurate format, {ratio:.1f} times as fast as the float32 "
        "SavedModel",
        *(f"{name} is faster, but {obstacle(name)}" for name in ranked[: ranked.index(best)]),
    ]
    return best, "; ".join(reasons)


def _images_per_second(run, batch, seconds):
    """Returns images per second, from the median time of at least three runs on a batch after a
    warm-up run."""
    run(batch)
    times = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 100):
        start = time.perf_counter()
        run(batch)
        times.append(time.perf_counter() - start)
    return len(batch) / statistics.median(times)
