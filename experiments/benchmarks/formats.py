"""Images a second of a Vision Transformer on the CPU in each export format, side by side.

    pip install -e ".[onnx]" && python experiments/benchmarks/formats.py --model=ViT_B16

Each format runs in its own process. The processes take turns, and rates are medians over the rounds. `difference` is
the largest difference from the Keras model's logits on smooth noise, relative to their range. The weights are random;
experiments/real/low_precision.py measures what low precision costs a trained model.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import app, flags

FLAGS = flags.FLAGS
FORMATS = ("keras", "saved_model", "saved_model bfloat16", "onnx", "onnx int8", "litert", "litert int8")


def define_flags():
    flags.DEFINE_string("model", "ViT_B16", "A constructor of keras_vit.")
    flags.DEFINE_list("formats", list(FORMATS), f"Some of {', '.join(FORMATS)}.")
    flags.DEFINE_list("batch_sizes", ["1", "8"], "Images in a batch.")
    flags.DEFINE_integer("rounds", 6, "Rounds that count, after one that does not.", lower_bound=1)
    flags.DEFINE_integer("threads", os.cpu_count(), "Threads of ONNX Runtime and LiteRT.", lower_bound=1)
    flags.DEFINE_string("output", "", "CSV file for the results.")
    flags.DEFINE_string("worker", "", "Be the process of one format (used internally).")


def build():
    import keras
    import numpy as np

    import keras_vit

    keras.utils.set_random_seed(0)
    model = getattr(keras_vit, FLAGS.model)(weights=None)
    # The new head is zero, which would make all logits equal.
    model.head.kernel.assign(np.random.default_rng(0).normal(0, 0.05, model.head.kernel.shape))
    return model


def load(name, model, folder):
    """Exports a model; returns a function from images to logits, and the path that was written."""
    import numpy as np
    import tensorflow as tf

    from keras_vit import export

    kind, _, option = name.partition(" ")
    if kind == "keras":
        function = tf.function(lambda images: model(images, training=False), autograph=False)
        return lambda images: function(tf.constant(images)).numpy(), None
    if kind == "saved_model":
        path = export.saved_model(model, folder, signatures=["tensor"], precision=option or "float32")
        signature = tf.saved_model.load(path).signatures["tensor"]
        # Logits up to a constant, which the comparison removes.
        return lambda images: np.log(signature(images=tf.constant(images))["probabilities"].numpy()), path
    if kind == "onnx":
        import onnxruntime

        path = f"{folder}/model.onnx"
        export.onnx(model, path)
        if option:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantize_dynamic(path, f"{folder}/int8.onnx", weight_type=QuantType.QInt8, per_channel=True)
            path = f"{folder}/int8.onnx"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = FLAGS.threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda images: session.run(["logits"], {"images": images})[0], path
    path = f"{folder}/model.tflite"
    export.litert(model, path, quantization=option or "none")
    return litert_function(path), path


def litert_function(path):
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(path, num_threads=FLAGS.threads)
    source, result = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]

    def run(images):
        if tuple(interpreter.get_input_details()[0]["shape"]) != images.shape:
            interpreter.resize_tensor_input(source, images.shape)
            interpreter.allocate_tensors()
        interpreter.set_tensor(source, images)
        interpreter.invoke()
        return interpreter.get_tensor(result)

    return run


def size_of(path):
    """Bytes of a file, or of a SavedModel's graph and weights."""
    path = Path(path)
    parts = [path] if path.is_file() else [path / "saved_model.pb", *path.glob("variables/*")]
    return sum(part.stat().st_size for part in parts)


def worker(name):
    """Prints facts about a format, then answers batch sizes from standard input with seconds."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not mix with the answers
    import numpy as np

    from keras_vit.export.conversions import example_images

    model = build()
    with tempfile.TemporaryDirectory() as folder:
        run, path = load(name, model, folder)
        images = example_images(model.input_shape[1:], 16)
        centered = [values - values.mean(1, keepdims=True) for values in (model(images).numpy(), run(images))]
        facts = {
            "megabytes": size_of(path) / 1e6 if path else "",
            "difference": float(np.abs(centered[1] - centered[0]).max() / np.ptp(centered[0])),
            "same_class": float((centered[0].argmax(1) == centered[1].argmax(1)).mean()),
        }
        print(json.dumps(facts), file=answers, flush=True)
        for line in sys.stdin:
            batch = images[: int(line)]
            start = time.perf_counter()
            run(batch)
            seconds = time.perf_counter() - start
            print(seconds, file=answers, flush=True)


def main(_):
    if FLAGS.worker:
        return worker(FLAGS.worker)
    workers, facts = {}, {}
    for name in FLAGS.formats:
        command = [sys.executable, __file__, *sys.argv[1:], f"--worker={name}"]
        workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        facts[name] = json.loads(workers[name].stdout.readline())
    batch_sizes = [int(size) for size in FLAGS.batch_sizes]
    seconds = {(name, size): [] for name in workers for size in batch_sizes}
    for number in range(FLAGS.rounds + 1):
        for size in batch_sizes:
            for name, process in workers.items():
                process.stdin.write(f"{size}\n")
                process.stdin.flush()
                value = float(process.stdout.readline())
                if number:
                    seconds[name, size].append(value)
    rows = []
    for name, process in workers.items():
        process.stdin.close()
        process.wait()
        rates = [f"{size / statistics.median(seconds[name, size]):.2f}" for size in batch_sizes]
        numbers = [facts[name][key] for key in ("megabytes", "difference", "same_class")]
        rows.append([name, *rates, *(f"{number:.3g}" if number != "" else "" for number in numbers)])
    columns = ["format", *(f"images/s at batch {size}" for size in batch_sizes), "MB", "difference", "same class"]
    for row in (columns, *rows):
        print(" | ".join(row))
    if FLAGS.output:
        with open(FLAGS.output, "w", encoding="utf-8") as file:
            file.writelines(",".join(row) + "\n" for row in (columns, *rows))


if __name__ == "__main__":
    define_flags()
    app.run(main)
