"""Compiles the steps of a run for a TPU slice, and looks for what fits."""

import dataclasses

import keras
from ml_collections import ConfigDict

from keras_vit import cost
from keras_vit.tasks import Task
from keras_vit.tpu import compiler
from keras_vit.tpu.inputs import input_shapes
from keras_vit.tpu.programs import programs_class
from keras_vit.tpu.results import Change, Check, fits_memory
from keras_vit.tpu.search import fitting_batch
from keras_vit.tpu.topologies import get_topology
from keras_vit.training.validation import total_steps, validate_config

# For the schedule of a run whose number of steps is not known; it changes no size.
_SOME_STEPS = 10**6


def check(task: Task, recipe: ConfigDict, batch_size: int, topology: str, *, search: bool = False) -> Check:
    """Compiles the training and the evaluation step of a run for a TPU slice, without a TPU.

    On the TensorFlow backend it is the program of one replica, on JAX that of all devices, with what they exchange. The
    dataset of the recipe need not be here, except a folder or a list, whose classes have to be counted; its weights are
    not read.

    Args:
        task: the `tasks.Task`.
        recipe: the config; `batch_size` replaces its own.
        batch_size: examples in a batch, over all devices of the slice.
        topology: the name of a slice, such as "v3:2x2".
        search: whether to look for the largest batch that fits, and for what rematerialization and accumulation would
            allow: several compiles, on TensorFlow until the memory is planned and no further.

    Returns:
        A `Check`.

    Raises:
        ImportError: jax or libtpu is missing; `pip install "keras_vit[aot]"`.
        ValueError: the slice is not known, or the recipe cannot be satisfied on it.
    """
    slice_ = get_topology(topology)
    config = _changed(recipe, batch_size=batch_size)
    validate_config(config, slice_.num_devices)
    compiler.check_installed()
    inputs = input_shapes(config)
    steps = total_steps(config, inputs.num_examples) if config.total_steps or inputs.num_examples else 0

    def make_programs(config, task):
        return programs_class()(config, task, inputs, slice_, steps or _SOME_STEPS)

    def compile_size(programs, size, known=None):
        """`fitting_batch`'s, of programs that exist."""
        both = known or _compile(programs, size * slice_.num_devices, config.accumulate_steps, machine_code=False)
        return all(fits_memory(p, slice_) for p in both), max(p.memory_bytes for p in both)

    programs, size = make_programs(config, task), batch_size // slice_.num_devices
    train, evaluation = _compile(programs, batch_size, config.accumulate_steps)
    result = Check(
        topology=slice_,
        backend=keras.backend.backend(),
        batch_size=batch_size,
        accumulate_steps=config.accumulate_steps,
        precision=config.precision,
        train=train,
        evaluation=evaluation,
        state_bytes=programs.state_bytes,
        all_reduce_bytes=programs.gradient_bytes,
        model_flops=3.0 * size * _flops(programs.model),
        total_steps=steps,
        fitting_batch_per_device=size,
    )
    if not result.compiles or result.host_operations or (result.fits and not search):
        return result

    known = {size: (train, evaluation)}
    limit, unit = slice_.device.memory_bytes, config.accumulate_steps
    fitting = fitting_batch(
        lambda n: compile_size(programs, n, known.get(n)), limit, first=size, unit=unit, largest=search
    )
    changes = []
    if search and not config.remat and _has_blocks(programs.model):
        other = _changed(config, remat=True)
        programs = make_programs(other, type(task)(other))
        most = fitting_batch(lambda n: compile_size(programs, n), limit, first=2 * size, unit=unit, largest=True)
        changes.append(Change("remat=True", most))
    if search and fitting < size:
        parts = next((k for k in range(2, size + 1) if size % k == 0 and size // k <= fitting // unit), 0)
        both = _compile(make_programs(config, task), batch_size, parts, machine_code=False) if parts else ()
        if parts and all(fits_memory(program, slice_) for program in both):
            changes.append(Change(f"accumulate_steps={parts}", size))
    return dataclasses.replace(result, fitting_batch_per_device=fitting, changes=tuple(changes))


def _compile(programs, batch_size, accumulate_steps, machine_code=True):
    """The `Program` of training and that of evaluation; the latter is not compiled where the former is refused for
    another reason than memory. Without machine code their memory is known in a tenth of the time."""
    train = programs.train(batch_size, accumulate_steps, machine_code)
    if not train.compiles and not train.out_of_memory:
        return train, train
    return train, programs.evaluation(batch_size, accumulate_steps, machine_code)


def _changed(recipe, **changes):
    config = recipe.copy_and_resolve_references()
    config.update(changes)
    return config


def _flops(model):
    try:
        return cost.flops(model)
    except ValueError:
        return 0.0


def _has_blocks(model):
    return any(hasattr(layer, "remat") for layer in model.layers)
