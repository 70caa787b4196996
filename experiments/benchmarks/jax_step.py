"""Compares a training step of ViT in keras_vit on JAX, keras_vit on TensorFlow, and Flax.

    pip install -e ".[cpu,jax]" flax optax && python experiments/benchmarks/jax_step.py

All three use float32, the same model and batch size, and AdamW with gradients clipped at 1. The
Flax code is idiomatic: `nn.MultiHeadDotProductAttention`, `nn.LayerNorm`, `optax.chain`, and a
jitted step that donates its state. The three run in separate processes, which alternate, so that
only one computes at a time. The last column is the speed relative to keras_vit on JAX, computed
from the medians over the rounds.
"""

import functools
import statistics

from absl import app, flags
from vit_models import CLASSES, SIZES, build_engine, random_batch, train_config
from workers import Worker, in_turns, seconds, serve

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


def load_keras_vit():
    """Returns the number of parameters of keras_vit's model, and a function `run(steps)` that
    trains it."""
    config = train_config(_BATCH.value, _SIZE.value, sizes(), strategy="default")
    engine = build_engine(config, *random_batch(_BATCH.value, _SIZE.value))
    number = iter(range(10**9))

    def run(steps):
        for _ in range(steps):
            engine.train(next(number), 1)

    return engine.model.count_params(), run


def load_flax():
    """Returns the number of parameters of the model in Flax, and a function `run(steps)` that
    trains it."""
    import jax
    from flax_vit import ViT, make_optimizer, make_step

    key = jax.random.PRNGKey(0)
    images = jax.random.uniform(key, (_BATCH.value, _SIZE.value, _SIZE.value, 3), minval=-1.0)
    labels = jax.nn.one_hot(jax.numpy.arange(_BATCH.value) % CLASSES, CLASSES)
    model = ViT(**sizes(), classes=CLASSES)
    parameters = jax.jit(model.init)(key, images)
    optimizer = make_optimizer()
    state = [parameters, jax.jit(optimizer.init)(parameters)]
    step = jax.jit(make_step(model, optimizer), donate_argnums=(0, 1))

    def run(steps):
        for _ in range(steps):
            *state[:], loss, _ = step(*state, images, labels)
            loss.block_until_ready()

    return sum(array.size for array in jax.tree.leaves(parameters)), run


def sizes():
    return {**SIZES["B/16"], "num_layers": _LAYERS.value}


def load(library):
    """Returns the number of parameters, and a function that times a number of steps."""
    parameters, run = load_flax() if library == "flax" else load_keras_vit()
    return parameters, functools.partial(seconds, run)


def main(_):
    if _WORKER.value:
        serve(lambda: load(_WORKER.value))
        return
    workers = {}
    for library in _LIBRARIES:
        backend = "tensorflow" if library.endswith("tensorflow") else "jax"
        workers[library] = Worker(library, KERAS_BACKEND=backend)
        print(f"{library}: {workers[library].facts:,} parameters", flush=True)
    runs = {
        library: functools.partial(worker.query, _STEPS.value)
        for library, worker in workers.items()
    }
    for library, (spent,) in in_turns(runs, 1).items():
        print(f"{library}: first {_STEPS.value} steps, compilation included, {spent:.1f} s")
    medians = {
        library: statistics.median(spent) / _STEPS.value
        for library, spent in in_turns(runs, _ROUNDS.value).items()
    }
    for library, median in medians.items():
        speedup = medians[_LIBRARIES[0]] / median
        print(f"{library:22}{_BATCH.value / median:8.2f} images/s{speedup:8.3f}")
    for worker in workers.values():
        worker.close()


if __name__ == "__main__":
    app.run(main)
