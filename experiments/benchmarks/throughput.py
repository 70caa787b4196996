"""Compares images per second of ViT-B/16 in keras_vit and keras-hub.

    pip install -e ".[benchmarks]" && python experiments/benchmarks/throughput.py

Each library runs in its own process, so that peak memory is separate. The processes alternate, so
that only one computes at a time. Images per second are medians over the rounds; the other rows are
measured once. A ratio above 1 favors keras_vit. The time to the first step includes building the
model, tracing and one step. `--output` also writes the table as JSON.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

from absl import app, flags

_LIBRARIES = ("keras_vit", "keras_hub")
_BATCH = flags.DEFINE_integer("batch_size", 8, "Images in a batch.", lower_bound=1)
_SIZE = flags.DEFINE_integer("image_size", 224, "Height and width of the images.", lower_bound=16)
_LAYERS = flags.DEFINE_integer("num_layers", 12, "Blocks of the model; 12 is ViT-B.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 10, "Measured rounds, after one warm-up round.", lower_bound=1
)
_STEPS = flags.DEFINE_integer("steps", 2, "Steps per turn of a library.", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "", "JSON file for the results.")
_WORKER = flags.DEFINE_enum(
    "worker", None, _LIBRARIES, "Internal: run as the process of one library."
)


def build(library):
    """Returns a ViT-B/16 with `--num_layers` blocks and 1,000 logits."""
    if library == "keras_vit":
        import keras_vit

        return keras_vit.VisionTransformer(
            input_shape=(_SIZE.value, _SIZE.value, 3),
            patch_size=16,
            num_layers=_LAYERS.value,
            hidden_size=768,
            mlp_dim=3072,
            num_heads=12,
        )
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(_SIZE.value, _SIZE.value, 3),
        patch_size=16,
        num_layers=_LAYERS.value,
        num_heads=12,
        hidden_dim=768,
        mlp_dim=3072,
    )
    return keras_hub.models.ViTImageClassifier(backbone, num_classes=1000)


def worker(library):
    """Runs the commands `[mode, steps]` from stdin and prints results as JSON.

    The first line has the build time and the number of parameters. Then, for each command, a line
    has the seconds that the command took and the peak memory so far in bytes.
    """
    # Keep the libraries' output out of the answers.
    answers = sys.stdout
    sys.stdout = sys.stderr

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    import keras

    keras.utils.set_random_seed(0)
    start = time.perf_counter()
    model = build(library)
    optimizer = keras.optimizers.AdamW(1e-3)
    answer({"build": time.perf_counter() - start, "parameters": model.count_params()})

    inference, train = make_steps(model, optimizer)
    for line in sys.stdin:
        command, steps = json.loads(line)
        start = time.perf_counter()
        for _ in range(steps):
            result = inference() if command == "inference" else train()
        result.numpy()
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
        answer({"seconds": seconds, "peak_bytes": peak})


def make_steps(model, optimizer):
    """Returns functions that run an inference step and a training step on random images."""
    import tensorflow as tf

    shape = (_BATCH.value, _SIZE.value, _SIZE.value, 3)
    images = tf.random.stateless_uniform(shape, (0, 0), -1.0, 1.0)
    labels = tf.zeros(_BATCH.value, tf.int32)

    @tf.function
    def inference():
        return model(images, training=False)

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return inference, train


def start_worker(library):
    command = [sys.executable, *sys.argv, f"--worker={library}"]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    return subprocess.Popen(command, **pipes)


def query(process, *command):
    if command:
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise app.UsageError(
            f"A worker exited with code {process.wait()} before it answered; see its output above."
        )
    return json.loads(line)


def measure():
    """Returns `{name and unit: [value for keras_vit, value for keras_hub]}`."""
    processes = {}
    results = {"build, s": []}
    for library in _LIBRARIES:
        processes[library] = start_worker(library)
        outputs = query(processes[library])
        results["build, s"].append(outputs["build"])
        print(f"{library}: {outputs['parameters']:,} parameters", flush=True)
    for mode in ("inference", "train"):
        first = [query(process, mode, 1)["seconds"] for process in processes.values()]
        results[f"to first {mode} step, s"] = [
            sum(pair) for pair in zip(results["build, s"], first)
        ]
        seconds = {library: [] for library in _LIBRARIES}
        for number in range(_ROUNDS.value + 1):
            for library, process in processes.items():
                answer = query(process, mode, _STEPS.value)
                if number:
                    seconds[library].append(answer["seconds"])
        images = _STEPS.value * _BATCH.value
        rates = [images / statistics.median(seconds[library]) for library in _LIBRARIES]
        results[f"{mode}, images/s"] = rates
        results[f"peak memory after {mode}, MB"] = [
            query(process, mode, 1)["peak_bytes"] / 1e6 for process in processes.values()
        ]
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return results


def main(_):
    if _WORKER.value:
        worker(_WORKER.value)
        return
    results = measure()
    print(f"\n{'':32}{'keras_vit':>12}{'keras_hub':>12}{'ratio':>8}")
    for name, (keras_vit, keras_hub) in results.items():
        ratio = keras_vit / keras_hub if name.endswith("images/s") else keras_hub / keras_vit
        print(f"{name:32}{keras_vit:12.2f}{keras_hub:12.2f}{ratio:8.2f}")
    if _OUTPUT.value:
        named = {name: dict(zip(_LIBRARIES, pair)) for name, pair in results.items()}
        with open(_OUTPUT.value, "w", encoding="utf-8") as file:
            json.dump(named, file, indent=2)


if __name__ == "__main__":
    app.run(main)
