"""Measures the speed of training compared with `Model.fit`, the time to save, and the effect of
rematerialization.

    python experiments/benchmarks/training.py --measure=fit
    python experiments/benchmarks/training.py --measure=save --measure=remat --batch_size=32

The measurements are:

    fit     Images per second on one device, at 1 and 20 steps per call. keras_vit and `Model.fit`
            have the same model, optimizer, clipping and batch, and alternate in one process. The
            rates are computed from median times. A ratio above 1 means that keras_vit is faster.
    save    The time to save one checkpoint of ViT-B/16 with its optimizer, as a percentage of the
            time of 100 steps.
    remat   The increase of peak memory during training steps of ViT-B/16 and the time of a step,
            with and without rematerialization. Each variant runs in its own process.
"""

import dataclasses
import functools
import os
import statistics
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from ml_collections import ConfigDict
from workers import Worker, in_turns, peak_bytes, seconds, serve

import keras_vit
from keras_vit import optimizers, recipes, tasks
from keras_vit.training.checkpoint_manager import CheckpointManager
from keras_vit.training.counters import Counters
from keras_vit.training.tensorflow import TensorFlowEngine
from keras_vit.training.tensorflow.state import State
from keras_vit.training.tensorflow.step import make_train_steps

_MEASURE = flags.DEFINE_multi_enum("measure", ["fit"], ["fit", "save", "remat"], "What to measure.")
_BATCH = flags.DEFINE_integer("batch_size", 32, "Images per step.", lower_bound=1)
_SIZE = flags.DEFINE_integer(
    "image_size", 224, "Height and width of the images of ViT-B/16.", lower_bound=16
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 7, "Measured rounds, after one warm-up round.", lower_bound=1
)
_WORKER = flags.DEFINE_enum(
    "worker", None, ["plain", "remat"], "Internal: run as the process of one variant."
)

# ViT-Ti/16 at 64 pixels: small enough for the overhead of a step to matter.
SMALL = {"input_shape": (64, 64, 3), "classes": 10, "dropout": 0.1}

CLIP_NORM = 1.0  # maximum gradient norm in all measurements


def batches(model):
    """Returns an endless dataset that repeats one batch, so that input takes almost no time."""
    images = tf.random.stateless_uniform((_BATCH.value, *model.input_shape[1:]), (0, 0), -1.0, 1.0)
    labels = tf.one_hot(tf.range(_BATCH.value) % model.output_shape[-1], model.output_shape[-1])
    return tf.data.Dataset.from_tensors((images, labels, tf.ones(_BATCH.value))).repeat()


def our_loop(model):
    """Returns `(state, run)`; `run(steps)` trains with keras_vit, in one compiled call."""
    optimizer = optimizers.get("adamw", 1e-3)
    optimizer.build(model.trainable_variables)
    state = State(model, optimizer)
    config = ConfigDict(recipes.defaults(batch_size=_BATCH.value, clip_norm=CLIP_NORM))
    train_steps = make_train_steps(tf.distribute.get_strategy(), state, tasks.get(config), config)
    iterator = iter(batches(model))

    def run(steps):
        outputs = train_steps(iterator, tf.constant(0), tf.constant(steps), tf.constant(0.0))
        outputs["metrics"].numpy()  # waits for the device

    return state, run


def keras_fit(model, steps_per_call):
    """Returns a function `run(steps)` that trains with `Model.fit`."""
    model.compile(
        optimizers.AdamW(1e-3, global_clipnorm=CLIP_NORM),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_call,
        jit_compile=False,
    )
    data = batches(model)
    return lambda steps: model.fit(data, steps_per_epoch=steps, verbose=0, shuffle=False)


def measure_fit():
    for steps_per_call in (1, 20):
        _, loop = our_loop(keras_vit.ViT_Ti16(**SMALL))
        fit = keras_fit(keras_vit.ViT_Ti16(**SMALL), steps_per_call)

        def loop_calls(loop=loop, steps_per_call=steps_per_call):
            for _ in range(20 // steps_per_call):
                loop(steps_per_call)

        runs = {
            "ours": functools.partial(seconds, loop_calls),
            "fit": functools.partial(seconds, fit, 20),
        }
        in_turns(runs, 1)  # warms up
        ours, fit_rate = (
            20 * _BATCH.value / statistics.median(spent)
            for spent in in_turns(runs, _ROUNDS.value).values()
        )
        print(
            f"{steps_per_call:2} steps per call: ours {ours:.1f} images/s, Model.fit "
            f"{fit_rate:.1f}, ratio {ours / fit_rate:.3f}"
        )


def measure_save():
    state, run = our_loop(keras_vit.ViT_B16(input_shape=(_SIZE.value, _SIZE.value, 3)))
    run(1)
    step = statistics.median(seconds(run, 1) for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        engine = TensorFlowEngine(tf.distribute.get_strategy())
        engine.state = state
        checkpoints = CheckpointManager(folder, engine)
        counters = dataclasses.asdict(Counters())
        spent = statistics.median(
            seconds(checkpoints.save, number, counters) for number in range(3)
        )
    print(f"one save {spent:.2f} s, one step {step:.2f} s: {spent / step:.2f} % of 100 steps")


def load_remat(variant):
    """Returns no facts, and a function that runs a training step of ViT-B/16.

    The function returns the seconds of the step, and the increase of peak memory during all steps,
    in bytes.
    """
    model = keras_vit.ViT_B16(input_shape=(_SIZE.value, _SIZE.value, 3), remat=variant == "remat")
    state, run = our_loop(model)
    for variable in state.optimizer.variables:
        np.asarray(variable)  # wait until its memory is allocated
    before = peak_bytes()
    run(1)
    return None, lambda: (seconds(run, 1), peak_bytes() - before)


def measure_remat():
    times = {}
    memory = {}
    for variant in ("plain", "remat"):
        worker = Worker(variant)
        answers = [worker.query() for _ in range(3)]
        worker.close()
        times[variant] = statistics.median(spent for spent, _ in answers)
        memory[variant] = answers[-1][1]
    print(
        f"without rematerialization: {memory['plain'] / 1e9:.2f} GB and {times['plain']:.2f} s per "
        f"step, with it: {memory['remat'] / 1e9:.2f} GB ({memory['remat'] / memory['plain']:.2f}) "
        f"and {times['remat']:.2f} s ({times['remat'] / times['plain']:.2f})"
    )


def main(_):
    keras.utils.set_random_seed(0)
    if _WORKER.value:
        serve(lambda: load_remat(_WORKER.value))
        return
    for name in _MEASURE.value:
        {"fit": measure_fit, "save": measure_save, "remat": measure_remat}[name]()


if __name__ == "__main__":
    app.run(main)
