"""Measures the export formats of a model on this machine and selects the fastest accurate one."""

import importlib.util
import statistics
import time
from pathlib import Path

import tensorflow as tf

from keras_vit.export import conversions
from keras_vit.export.graph import inference_copy, write_graph
from keras_vit.terminal import first_line

# Names of formats: values of `--format`, followed by the precision unless it is float32.
CANDIDATES = ("saved_model", "saved_model bfloat16", "litert", "litert_int8", "onnx", "onnx_int8")
SAME_CLASS = (
    0.99  # minimum share of images for which bfloat16 and int8 must predict the model's class
)
_BATCH = 8  # maximum number of images in a timed batch


def measure(model, folder, images=None, write=print, seconds=2.0):
    """Writes a model to a folder in each format, measures each file, and prints a table with
    `write`.

    Returns `{name: (ExportReport, images per second)}`. `images`, float32 `(N, H, W, C)`, are used
    to compare outputs and to calibrate `onnx_int8`. Without images, noise is used to compare
    outputs, and `onnx_int8` is skipped. ONNX is skipped if tf2onnx or onnxruntime is not installed.
    An error in the float32 SavedModel is raised; any other format that fails is skipped with a
    message.
    """
    spec = conversions.check_convertible(model, "A file")
    reference = conversions.reference(model, images)
    has_onnx = all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime")))
    header = f"{'format':20}   images/s      MB  difference  same class, of {reference[2]}"
    write(f"{header}; measured on {conversions.instructions()}")
    measurements = {}
    content = b""
    for name in CANDIDATES:
        path = f"{folder}/{name.replace(' ', '_')}"
        low = name.endswith(("int8", "bfloat16"))
        if name.startswith("onnx") and (
            not has_onnx or (low and (images is None or "onnx" not in measurements))
        ):
            continue
        try:
            if name.startswith("saved_model"):
                run = _saved_model(model, path, spec, "bfloat16" if low else "float32")
                size = conversions.saved_model_size(path)
            else:
                if name.startswith("litert"):
                    content = conversions.litert_content(model, "int8" if low else "none")
                else:
                    content = (
                        conversions.quantize_onnx(content, reference[0])
                        if low
                        else conversions.onnx_content(model)
                    )
                run = (conversions.litert_runner if "litert" in name else conversions.onnx_runner)(
                    content
                )
                size = Path(path).write_bytes(content)
            report = conversions.compare(
                path, size, model, reference, conversions.in_batches(run, reference[0])
            )
        except (ValueError, RuntimeError) as error:
            if name == "saved_model":
                raise  # the other formats would fail too
            write(f"{name:20} skipped: {first_line(error)}")
            continue
        speed = _images_per_second(run, reference[0][:_BATCH], seconds)
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
    reason = (
        f"{best} is the fastest accurate format, {ratio:.1f} times as fast as the float32 "
        "SavedModel"
    )
    return best, reason + "".join(
        f"; {name} is faster, but {obstacle(name)}" for name in ranked[: ranked.index(best)]
    )


def _saved_model(model, path, spec, precision):
    copy = inference_copy(model, precision)
    write_graph(
        path, copy, {"logits": (lambda images: {"logits": copy(images, training=False)}, spec)}
    )
    signature = tf.saved_model.load(path).signatures["logits"]
    return lambda images: signature(images=tf.constant(images))["logits"]


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
