"""Compares a training step of ViT in keras_vit on JAX, keras_vit on TensorFlow, and Flax.

    pip install -e ".[cpu,jax]" flax optax && python experiments/benchmarks/jax_step.py

All three use float32, the same model and batch size, and AdamW with gradients clipped at 1. The
Flax code is idiomatic: `nn.MultiHeadDotProductAttention`, `nn.LayerNorm`, `optax.chain`, and a
jitted step that donates its state. The three run in separate processes, which alternate, so that
only one computes at a time. The last column is the speed relative to keras_vit on JAX, computed
from the medians over the rounds.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import types

from absl import app, flags

_LIBRARIES = ("keras_vit_jax", "keras_vit_tensorflow", "flax")
_BATCH = flags.DEFINE_integer("batch_size", 8, "Images in a batch.", lower_bound=1)
_SIZE = flags.DEFINE_integer("image_size", 224, "Height and width of the images.", lower_bound=16)
_LAYERS = flags.DEFINE_integer("num_layers", 12, "Blocks of the model; 12 is ViT-B.", lower_bound=1)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 7, "Measured rounds, after one warm-up round.", lower_bound=1
)
_STEPS = flags.DEFINE_integer("steps", 2, "Steps per turn of a library.", lower_bound=1)
_WORKER = flags.DEFINE_enum(
    "worker", None, _LIBRARIES, "Internal: run as the process of one library."
)

SIZES = {"patch_size": 16, "hidden_size": 768, "mlp_dim": 3072, "num_heads": 12}
CLASSES = 1000


def keras_vit_steps():
    """Returns a function `run(steps)` that trains with keras_vit, and the number of parameters."""
    import numpy as np
    import tensorflow as tf
    from ml_collections import ConfigDict

    from keras_vit import Preprocessing, recipes, tasks, training

    shape = (_SIZE.value, _SIZE.value, 3)
    config = ConfigDict(
        recipes.defaults(
            batch_size=_BATCH.value,
            total_steps=1000,
            clip_norm=1.0,
            strategy="default",
            optimizer={"name": "adamw"},
            model={**SIZES, "num_layers": _LAYERS.value, "input_shape": shape},
            schedule={"base": 1e-3},
        )
    )
    images = np.random.default_rng(0).uniform(-1, 1, (_BATCH.value, *shape)).astype("float32")
    labels = np.eye(CLASSES, dtype="float32")[np.arange(_BATCH.value) % CLASSES]
    batch = tf.data.Dataset.from_tensors((images, labels, np.ones(_BATCH.value, "float32")))
    inputs = types.SimpleNamespace(
        train=types.SimpleNamespace(class_names=[str(i) for i in range(CLASSES)]),
        batch_size=_BATCH.value,
        image_shape=shape,
        model_preprocessing=Preprocessing,
        train_batches=lambda *_, **__: batch.repeat().prefetch(2),
    )
    engine = training.choose_engine(config)
    engine.build(config, tasks.get(config), inputs, config.total_steps)
    number = iter(range(10**9))

    def run(steps):
        for _ in range(steps):
            engine.train(next(number), 1)

    return run, engine.model.count_params()


def flax_steps():
    """Returns a function `run(steps)` that trains a ViT in Flax, and the number of parameters."""
    import jax
    from flax_vit import ViT, make_optimizer, make_step

    key = jax.random.PRNGKey(0)
    images = jax.random.uniform(key, (_BATCH.value, _SIZE.value, _SIZE.value, 3), minval=-1.0)
    labels = jax.nn.one_hot(jax.numpy.arange(_BATCH.value) % CLASSES, CLASSES)
    model = ViT(**SIZES, num_layers=_LAYERS.value, classes=CLASSES)
    parameters = jax.jit(model.init)(key, images)
    optimizer = make_optimizer()
    state = [parameters, jax.jit(optimizer.init)(parameters)]
    step = jax.jit(make_step(model, optimizer), donate_argnums=(0, 1))

    def run(steps):
        for _ in range(steps):
            *state[:], loss, _ = step(*state, images, labels)
            loss.block_until_ready()

    return run, sum(array.size for array in jax.tree.leaves(parameters))


def worker(library):
    """Prints the number of parameters. Then reads numbers of steps from standard input and prints
    their durations."""
    # Keep the libraries' output out of the answers.
    answers = sys.stdout
    sys.stdout = sys.stderr
    run, parameters = flax_steps() if library == "flax" else keras_vit_steps()
    print(json.dumps(parameters), file=answers, flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        run(json.loads(line))
        print(json.dumps(time.perf_counter() - start), file=answers, flush=True)


def start_worker(library):
    backend = "tensorflow" if library.endswith("tensorflow") else "jax"
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    return subprocess.Popen([sys.executable, *sys.argv, f"--worker={library}"], **pipes)


def read(library, process):
    line = process.stdout.readline()
    if not line:
        raise app.UsageError(
            f"{library} ended before it answered; see its output above. Exit code: {process.wait()}"
        )
    return json.loads(line)


def main(_):
    if _WORKER.value:
        worker(_WORKER.value)
        return
    processes = {}
    seconds = {library: [] for library in _LIBRARIES}
    for library in _LIBRARIES:
        processes[library] = start_worker(library)
        print(f"{library}: {read(library, processes[library]):,} parameters", flush=True)
    for number in range(_ROUNDS.value + 1):
        for library, process in processes.items():
            process.stdin.write(f"{_STEPS.value}\n")
            process.stdin.flush()
            spent = read(library, process)
            if number:
                seconds[library].append(spent / _STEPS.value)
            else:
                print(
                    f"{library}: first {_STEPS.value} steps, compilation included, {spent:.1f} s",
                    flush=True,
                )
    ours = statistics.median(seconds[_LIBRARIES[0]])
    for library, spent in seconds.items():
        median = statistics.median(spent)
        print(f"{library:22}{_BATCH.value / median:8.2f} images/s{ours / median:8.3f}")
    for process in processes.values():
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    app.run(main)
