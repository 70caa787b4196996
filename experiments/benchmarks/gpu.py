"""Compares the speed of ViT on a GPU between keras_vit on JAX and timm on PyTorch.

    pip install -e ".[cpu,jax-gpu]" torch timm && python experiments/benchmarks/gpu.py
    python experiments/benchmarks/gpu.py --variant=L --measure=train --batch_sizes=64,128,256 \\
        --peak_tflops=989

Both libraries compute in bfloat16 on images of 224 pixels, and train with AdamW and gradients
clipped to a norm of 1. timm's model uses `torch.compile` and fused attention. The script first
finds the fastest batch size of each library. Then the libraries run in turns, each in its own
process, so that only one computes at a time.

Prints the median images per second, the peak device memory and the largest tried batch size that
fits. A ratio above 1 means that keras_vit is faster. With `--peak_tflops`, also prints the fraction
of the card's peak rate. For this fraction, each multiply-accumulate of the forward pass, except for
the head, counts as 6 operations in training and as 2 in inference.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import types

from absl import app, flags

_LIBRARIES = ("keras_vit", "timm")
_VARIANT = flags.DEFINE_enum(
    "variant",
    "B",
    ["S", "B", "L", "H", "tiny"],
    "ViT-S/16, B/16, L/16 or H/14, or a small model to try the script.",
)
_MEASURE = flags.DEFINE_multi_enum(
    "measure", ["train", "inference"], ["train", "inference"], "What to measure."
)
_BATCHES = flags.DEFINE_list(
    "batch_sizes", ["32", "64", "128", "256", "512"], "Batch sizes to try."
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 7, "Measured rounds, after one warm-up round.", lower_bound=1
)
_STEPS = flags.DEFINE_integer("steps", 20, "Steps per turn of a library.", lower_bound=1)
_PEAK = flags.DEFINE_float(
    "peak_tflops", 0.0, "The card's dense bfloat16 rate, TFLOP/s; 0 omits the fraction."
)
_WORKER = flags.DEFINE_enum(
    "worker", None, _LIBRARIES, "Internal: run as the process of one library."
)

SIZE = 224
CLASSES = 1000
SIZES = {
    name: dict(zip(("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim"), row))
    for name, row in {
        "S": (16, 384, 12, 6, 1536),
        "B": (16, 768, 12, 12, 3072),
        "L": (16, 1024, 24, 16, 4096),
        "H": (14, 1280, 32, 16, 5120),
        "tiny": (16, 192, 2, 3, 768),
    }.items()
}


def keras_vit_run(measure, batch_size):
    """Returns a function `run(steps)` that computes with JAX and returns the peak memory of the
    device in bytes."""
    images, labels = random_batch(batch_size)
    engine = build_engine(images, labels)
    if measure == "inference":
        return jax_inference(engine, images)

    def run(steps):
        engine.train(0, steps)
        return jax_peak()

    return run


def random_batch(batch_size):
    """Returns float32 images `(B, H, W, C)` in [-1, 1] and one-hot labels `(B, classes)`."""
    import numpy as np

    images = np.random.default_rng(0).uniform(-1, 1, (batch_size, SIZE, SIZE, 3)).astype("float32")
    return images, np.eye(CLASSES, dtype="float32")[np.arange(batch_size) % CLASSES]


def build_engine(images, labels):
    """Returns keras_vit's engine on JAX, whose input repeats one batch."""
    import keras
    import numpy as np
    import tensorflow as tf
    from ml_collections import ConfigDict

    from keras_vit import Preprocessing, recipes, tasks, training

    batch_size = len(images)
    shape = images.shape[1:]
    config = ConfigDict(
        recipes.defaults(
            batch_size=batch_size,
            total_steps=1000,
            clip_norm=1.0,
            strategy="default",
            optimizer={"name": "adamw"},
            precision="mixed_bfloat16",
            model={**SIZES[_VARIANT.value], "input_shape": shape},
            steps_per_call=_STEPS.value,
            schedule={"base": 1e-3},
        )
    )
    batch = tf.data.Dataset.from_tensors((images, labels, np.ones(batch_size, "float32")))
    inputs = types.SimpleNamespace(
        train=types.SimpleNamespace(class_names=[str(i) for i in range(CLASSES)]),
        batch_size=batch_size,
        image_shape=shape,
        model_preprocessing=Preprocessing,
        train_batches=lambda *_, **__: batch.repeat().prefetch(2),
    )
    engine = training.choose_engine(config)
    keras.config.set_dtype_policy(config.precision)
    engine.build(config, tasks.get(config), inputs, config.total_steps)
    return engine


def jax_inference(engine, images):
    """Returns a function `run(steps)` that computes logits and returns the peak memory."""
    import jax

    model = engine.model
    images = jax.device_put(images)
    others = [variable.value for variable in model.non_trainable_variables]

    @jax.jit
    def predict(weights, images):
        return model.stateless_call(weights, others, images, training=False)[0]

    def run(steps):
        for _ in range(steps):
            logits = predict(engine.state.weights, images)
        logits.block_until_ready()
        return jax_peak()

    return run


def jax_peak():
    """Returns the peak memory of the first device in bytes; 0 if JAX does not report it."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def timm_run(measure, batch_size):
    """Returns a function `run(steps)` that computes with PyTorch and returns the peak memory of the
    device in bytes."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    model = timm_model().to(device)
    compiled = torch.compile(model)
    images = torch.rand(batch_size, 3, SIZE, SIZE, device=device) * 2 - 1
    labels = torch.arange(batch_size, device=device) % CLASSES

    def autocast():
        return torch.autocast(device, torch.bfloat16)

    def finished_peak():
        """Waits for the device and returns its peak memory in bytes; 0 on a CPU."""
        if device == "cpu":
            return 0
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    if measure == "inference":
        model.eval()

        def run(steps):
            with torch.inference_mode(), autocast():
                for _ in range(steps):
                    compiled(images)
            return finished_peak()

        return run
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")

    def run(steps):
        for _ in range(steps):
            with autocast():
                loss = torch.nn.functional.cross_entropy(compiled(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return finished_peak()

    return run


def timm_model():
    import timm

    sizes = SIZES[_VARIANT.value]
    return timm.models.vision_transformer.VisionTransformer(
        img_size=SIZE,
        patch_size=sizes["patch_size"],
        num_classes=CLASSES,
        embed_dim=sizes["hidden_size"],
        depth=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        mlp_ratio=sizes["mlp_dim"] / sizes["hidden_size"],
    )


def worker(library):
    """Answers each `[measure, batch_size, steps]` on standard input with `[seconds, peak bytes]`.

    The answer is null if the memory is too small.
    """
    # Keep the libraries' output out of the answers.
    answers = sys.stdout
    sys.stdout = sys.stderr
    built = run = None
    for line in sys.stdin:
        measure, batch_size, steps = json.loads(line)
        try:
            if built != (measure, batch_size):
                run = None  # frees the memory of the previous model
                run = {"keras_vit": keras_vit_run, "timm": timm_run}[library](measure, batch_size)
                built = (measure, batch_size)
                run(steps)  # compiles
            start = time.perf_counter()
            peak = run(steps)
            answer = [time.perf_counter() - start, peak]
        except (RuntimeError, ValueError) as error:
            # Training in keras_vit raises a `ValueError` if the memory is too small.
            if "memory" not in str(error).lower():
                raise
            built = None
            answer = None
        print(json.dumps(answer), file=answers, flush=True)


class Worker:
    """A child process that runs one library."""

    def __init__(self, library):
        environment = {**os.environ, "KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "2"}
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
            "env": environment,
        }
        self._process = subprocess.Popen(
            [sys.executable, *sys.argv, f"--worker={library}"], **pipes
        )
        self._library = library

    def query(self, *command):
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise app.UsageError(f"{self._library} ended before it answered; see its output above")
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def best_batch(library, measure):
    """Returns `(fastest batch size, largest batch size that fits)`. Measures in a separate
    process."""
    rates = {}
    process = Worker(library)
    for size in map(int, _BATCHES.value):
        answer = process.query(measure, size, _STEPS.value)
        if answer is None:
            break
        rates[size] = size * _STEPS.value / answer[0]
        print(f"  {library}, batch {size}: {rates[size]:,.1f} images/s", flush=True)
    process.close()
    if not rates:
        raise app.UsageError(
            f"The first batch size does not fit {library}. Received: "
            f"--batch_sizes={','.join(_BATCHES.value)}"
        )
    return max(rates, key=rates.get), max(rates)


def compare(measure):
    """Compares the libraries in training ("train") or "inference", and prints the results."""
    sizes = {library: best_batch(library, measure) for library in _LIBRARIES}
    seconds = {library: [] for library in _LIBRARIES}
    peaks = {}
    processes = {library: Worker(library) for library in _LIBRARIES}
    for number in range(_ROUNDS.value + 1):
        for library, process in processes.items():
            answer = process.query(measure, sizes[library][0], _STEPS.value)
            if answer is None:
                raise app.UsageError(
                    "Both libraries together do not fit: choose smaller --batch_sizes"
                )
            if number:
                seconds[library].append(answer[0])
            peaks[library] = answer[1]
    for process in processes.values():
        process.close()
    rates = {
        name: sizes[name][0] * _STEPS.value / statistics.median(spent)
        for name, spent in seconds.items()
    }
    for library, rate in rates.items():
        share = ""
        if _PEAK.value:
            share = (
                f", {100 * rate * operations(measure) / (_PEAK.value * 1e12):.0f} % of "
                f"{_PEAK.value:g} TFLOP/s"
            )
        batch, largest = sizes[library]
        print(
            f"{measure}, {library}: {rate:,.1f} images/s at batch {batch} (largest that fits: "
            f"{largest}), peak {peaks[library] / 1e9:.2f} GB{share}"
        )
    print(f"{measure}: ratio {rates['keras_vit'] / rates['timm']:.3f}", flush=True)


def operations(measure):
    """Returns the floating-point operations for one image, counted without the head as in the
    paper's Table 6."""
    from keras_vit import VisionTransformer, cost

    sizes = {**SIZES[_VARIANT.value], "input_shape": (SIZE, SIZE, 3)}
    forward = cost.flops(cost.build_abstract(VisionTransformer, **sizes), table_6=True)
    return forward * (3 if measure == "train" else 1)


def main(_):
    if _WORKER.value:
        worker(_WORKER.value)
        return
    # By default, JAX preallocates most of the memory and leaves too little for the other library.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    for measure in _MEASURE.value:
        compare(measure)


if __name__ == "__main__":
    app.run(main)
