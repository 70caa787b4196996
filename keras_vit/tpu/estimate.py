"""Compiles the steps of a run for a TPU slice and searches for a batch that fits in its devices'
memory."""

import dataclasses

import keras
from ml_collections import ConfigDict

from keras_vit import cost, tasks, terminal
from keras_vit.models.freezing import frozen_weights
from keras_vit.tasks import Task
from keras_vit.tpu import compiler
from keras_vit.tpu.inputs import input_shapes
from keras_vit.tpu.results import Check
from keras_vit.tpu.search import largest_batch
from keras_vit.tpu.topologies import get_topology
from keras_vit.training.stored_models import load_any_model
from keras_vit.training.validation import total_steps, validate_config

# Schedule length if `total_steps` is unknown; does not affect the program's size.
_SOME_STEPS = 10**6


def check(
    task: Task, recipe: ConfigDict, batch_size: int, topology: str, *, search: bool = False
) -> Check:
    """Compiles the training and evaluation steps of a run for a TPU slice, without a TPU.

    On TensorFlow, this compiles the program of one replica; on JAX, the program of all devices. The
    check does not read weights. The dataset need not exist if the config specifies the image size
    and the number of classes.

    Args:
        task: the `tasks.Task`; `recipe` replaces its config.
        recipe: the config of the run; the argument `batch_size` replaces its field `batch_size`.
        batch_size: global batch size, over all devices of the slice.
        topology: name of a slice, such as "v3:2x2".
        search: whether to search for the largest batch that fits. If False,
            `Check.fitting_batch_per_device` may not be the largest.

    Returns:
        A `Check`.

    Raises:
        ImportError: jax, jaxlib or libtpu is not installed; run `pip install "keras_vit[aot]"`.
        ValueError: the slice is unknown, the config is invalid, or the backend is neither
            TensorFlow nor JAX.
    """
    slice_ = get_topology(topology)
    config = ConfigDict({**recipe.to_dict(), "batch_size": batch_size})
    validate_config(config, slice_.num_devices)
    compiler.check_installed()
    task.load_models(load_any_model, terminal.write)
    inputs = input_shapes(config, task.target)
    steps = 0
    if config.total_steps or inputs.num_examples:
        steps = total_steps(config, inputs.num_examples)
    # The schedule must be longer than its warm-up.
    schedule_steps = max(steps or _SOME_STEPS, config.schedule.warmup_steps + 1)

    task = tasks.get(config, task.with_config(config))
    programs = programs_class()(config, task, inputs, slice_, schedule_steps)
    size = batch_size // slice_.num_devices
    result = _compile(programs, config, size, steps)
    fitting = size if result.fits else 0
    if result.compiles and (search or not result.fits):
        fitting = _largest_batch(programs, config, size, any_will_do=not search)
    return dataclasses.replace(result, fitting_batch_per_device=fitting)


def _compile(programs, config, size, steps):
    """Compiles the steps for `size` images per device; returns the `Check`, without a batch that
    fits."""
    train, evaluation = programs.compile_steps(size)
    # The backward pass costs twice the forward pass, but an unknown part of it with frozen weights.
    passes = 1.0 if frozen_weights(programs.model) else 3.0
    try:
        forward_flops = float(size * cost.flops(programs.model))
    except ValueError:
        forward_flops = 0.0  # the model has layers whose cost is unknown
    return Check(
        topology=programs.topology,
        backend=keras.backend.backend(),
        batch_size=config.batch_size,
        accumulate_steps=config.accumulate_steps,
        precision=config.precision,
        train=train,
        evaluation=evaluation,
        state_bytes=programs.state_bytes,
        all_reduce_bytes=programs.gradient_bytes,
        model_flops=passes * forward_flops,
        total_steps=steps,
        forward_flops=forward_flops,
    )


def _largest_batch(programs, config, first, any_will_do):
    """Returns a number of images per device that fit."""

    def compile_size(images):
        steps = programs.compile_steps(images)
        return max(steps, key=lambda p: (not p.compiles, not p.out_of_memory, p.memory_bytes))

    limit = programs.topology.device.memory_bytes
    unit = config.accumulate_steps
    return largest_batch(compile_size, limit, first, programs.state_bytes, unit, any_will_do)


def programs_class():
    """Returns the subclass of `Programs` for the active Keras backend."""
    backend = keras.backend.backend()
    if backend == "jax":
        from keras_vit.tpu.jax_programs import JaxPrograms

        return JaxPrograms
    if backend != "tensorflow":
        raise ValueError(f"KERAS_BACKEND must be tensorflow or jax. Received: backend={backend!r}")
    from keras_vit.tpu.tensorflow_programs import TensorFlowPrograms

    return TensorFlowPrograms
