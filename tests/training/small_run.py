"""Trains a small model for a few seconds. Tests call `start`, or run this file as a command that
can kill itself.

    python small_run.py KIND WORKDIR [LINE [COPY] | saving]

- LINE: the process sends itself SIGKILL after it prints a line that starts with LINE.
- LINE COPY: the process is not killed. It copies the workdir to COPY before it prints the first
  line that starts with LINE.
- saving: the process sends itself SIGKILL during its second save.

After a completed run, the command writes the weights to `weights.npz` in the workdir.
"""

import functools
import os
import shutil
import signal
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from ml_collections import ConfigDict

from keras_vit import data, recipes, training
from keras_vit.training import checkpoint_manager
from keras_vit.training.tensorflow import TensorFlowEngine

# Config changes for each kind of run.
KINDS = {
    "alone": {"accumulate_steps": 2, "ema_decay": 0.5, "steps_per_call": 3, "clip_norm": 1.0},
    "patch_sizes": {
        "accumulate_steps": 2,
        "ema_decay": 0.5,
        "clip_norm": 1.0,
        "patch_sizes": (2, 4),
    },
    "mirrored": {"steps_per_call": 2},
    "workers": {"strategy": "multi_worker", "steps_per_call": 2},
    "sharded_workers": {"strategy": "multi_worker", "steps_per_call": 2, "shard": "parameters"},
}
STEPS = 11
MODEL = {
    "input_shape": (8, 8, 3),
    "patch_size": 4,
    "num_layers": 1,
    "hidden_size": 8,
    "mlp_dim": 12,
    "num_heads": 2,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "stochastic_depth": 0.1,
}


def config_of(kind="alone", **changes):
    """Returns the config of a run. An epoch has about 4.5 steps."""
    fields = {
        "batch_size": 320,
        "total_steps": STEPS,
        "checkpoint_every_steps": 4,
        "eval_every_steps": 5,
        "log_every_steps": 1,
        "model": MODEL,
        "data": data.defaults(name="digits", shift=1),
        "optimizer": {"name": "adamw"},
        "schedule": {"base": 1e-2, "warmup_steps": 2},
    }
    return ConfigDict(recipes.defaults(**{**fields, **KINDS[kind], **changes}))


@functools.cache
def mirrored():
    # Avoid collective operations. TensorFlow supports them for only one number of replicas per
    # process.
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())


def start(
    kind,
    workdir,
    write=print,
    custom_task=None,
    evaluators=None,
    engine=None,
    change=False,
    **changes,
):
    """Trains to the end and returns the `RunResult`.

    Args:
        kind, **changes: arguments of `config_of`.
        workdir: path of the workdir.
        write, evaluators, engine: arguments of `training.run`.
        custom_task: its argument `task`.
        change: whether the config of an unfinished run in the workdir may differ.
    """
    config = config_of(kind, **changes)
    if config.shard:
        from keras_vit.training.jax import state

        state.MIN_SHARDED_SIZE = 1  # otherwise, no array of this small model would be sharded
    if kind == "mirrored":
        engine = TensorFlowEngine(mirrored())
    workdir = training.Workdir(workdir, config.to_dict(), change)
    return training.run(
        config, workdir, write, task=custom_task, evaluators=evaluators, engine=engine
    )


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def toy_evaluator(evaluate):
    """Returns arguments of `start` for an evaluator "toy" with the metric "score"."""
    evaluator = types.SimpleNamespace(METRICS=("score",), evaluate=evaluate)
    return {"evaluators": {"toy": evaluator}, "evals": ("toy",)}


def stop_before(moment, workdir, **changes):
    """Interrupts a run before it writes a line that starts with `moment`."""

    def write(line):
        if line.startswith(moment):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start("alone", workdir, write, **changes)


def writer(workdir, moment, copy, write=print):
    """Returns a `write` function that copies the workdir before it writes the first line that
    starts with `moment`."""

    def copy_and_write(line):
        if line.startswith(moment) and not os.path.exists(copy):
            shutil.copytree(workdir, copy)
        write(line)

    return copy_and_write


def main(kind, workdir, moment="", copy=""):
    def write(line):
        print(line, flush=True)
        if moment and line.startswith(moment):
            _die()

    if copy:
        write = writer(workdir, moment, copy)
    if not kind.endswith("workers"):
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(4)]
        )
    if moment == "saving":
        write_json = checkpoint_manager.files.write_json
        saves = []

        def dying(path, content):
            if str(path).endswith(checkpoint_manager.MARKER):
                if saves:
                    _die()
                saves.append(path)
            write_json(path, content)

        checkpoint_manager.files.write_json = dying
    model = start(kind, workdir, write).model
    if training.is_chief():
        np.savez(
            f"{workdir}/weights.npz",
            **{weight.path.replace("/", "."): weight.numpy() for weight in model.weights},
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
