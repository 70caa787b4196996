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

FORMATS = {"litert": LITERT, "onnx": ONNX}
"""The formats of files by name, a value of `--format`; with the ending `_int8`, in 8 bits."""
FILE_FORMATS = tuple(name + ending for name in FORMATS for ending in ("", "_int8"))
# Names of formats: values of `--format`, followed by the precision unless it is float32.
CANDIDATES = ("saved_model", "saved_model bfloat16", *FILE_FORMATS)
# The minimum share of images for which bfloat16 and int8 must predict the model's class.
SAME_CLASS = 0.99
_BATCH = 8  # maximum number of images in a timed batch


def measure(model, folder, images=None, write=print, seconds=2.0):
    """Writes a model to a folder in each format, measures each file, and prints a table with
    `write`.

    Returns `{name: (ExportReport, images per second)}`. `images`, float32 `(N, H, W, C)`, are used
    to compare outputs and to calibrate `onnx_int8`. Without images, noise is used to compare
    outputs, and formats that need them are skipped. Formats whose packages are not installed are
    skipped too. An error in the float32 SavedModel is raised; any other format that fails is
    skipped with a message.
    """
    spec = check_convertible(model, "A file")
    compared = reference(model, images)
    write(f"{'format':20}   images/s      MB  difference  same class, of {compared.description}")
    measurements = {}
    for name in CANDIDATES:
        path = f"{folder}/{name.replace(' ', '_')}"
        file_format = FORMATS.get(name.removesuffix("_int8"))
        is_int8 = name.endswith("int8")
        if file_format and (
            file_format.missing() or (is_int8 and file_format.calibrates and images is None)
        ):
            continue
        try:
            if file_format is None:
                run = _saved_model(model, path, spec, name.partition(" ")[2] or "float32")
                size = saved_model_size(path)
            else:
                content = file_format.content(
                    model, spec, "int8" if is_int8 else "none", compared.images
                )
                run = file_format.runner(content)
                size = Path(path).write_bytes(content)
            report = compare(path, size, model, compared, in_batches(run, compared.images))
        except Exception as error:  # the runtimes have their own exception types
            if name == "saved_model":
                raise  # the other formats would fail too
            write(f"{name:20} skipped: {first_line(error)}")
            continue
        speed = _images_per_second(run, compared.images[:_BATCH], seconds)
        measurements[name] = report, speed
        share = report.largest_difference / (report.logits_range or 1.0)
        write(
            f"{name:20} {speed:10,.1f} {size / 1e6:7.2f} {share:11.2g} "
            f"{100 * report.same_class:9.3g} %"
        )
    return measurements


def choose(measurements, calibrated):
    """Returns the fastest accurate format and the reason; `keras-vit export --help` describes the
    choice."""

    def obstacle(name):
        same = measurements[name][0].same_class
        if name.endswith("int8") and not calibrated:
            return "int8 is chosen only with --calibrate=FOLDER of real images"
        if name.endswith(("int8", "bfloat16")) and same < SAME_CLASS:
            return (
                f"it predicts the same class for {100 * same:.3g} % of images, below "
                f"{100 * SAME_CLASS:.0f} %"
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


def _saved_model(model, path, spec, precision):
    copy = inference_copy(model, precision, chosen_device(None))
    write_logits_graph(path, copy, spec)
    return saved_model_runner(path, "logits", "logits")


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
