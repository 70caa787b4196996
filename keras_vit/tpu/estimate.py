"""Compiles the steps of a run for a TPU slice, and looks for what fits."""

import copy
import dataclasses
import numbers
import random

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

# How many numbers of micro-batches the search tries.
_MOST_DIVISORS = 4


def check(task: Task, recipe: ConfigDict, batch_size: int, topology: str, *, search: bool = False) -> Check:
    """Compiles the training and the evaluation step of a run for a TPU slice, without a TPU.

    On the TensorFlow backend it is the program of one replica, on JAX that of all devices, with what they exchange. The
    dataset of the recipe need not be here, except a folder or a list, whose classes have to be counted; its weights are
    not read.

    Args:
        task: the `tasks.Task`; its config is replaced by the recipe.
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
        ChildProcessError: the compiler died.
    """
    if not isinstance(batch_size, numbers.Integral):
        raise ValueError(f"`batch_size` must be an integer. Received: batch_size={batch_size!r}")
    slice_ = get_topology(topology)
    config = _changed(recipe, batch_size=int(batch_size))
    validate_config(config, slice_.num_devices)
    compiler.check_installed()
    inputs = input_shapes(config)
    steps = total_steps(config, inputs.num_examples) if config.total_steps or inputs.num_examples else 0
    # Nothing trains here, so a warm-up longer than the training is no error; it changes no size.
    schedule_steps = max(steps or _SOME_STEPS, config.schedule.warmup_steps + 1)

    def make_programs(config):
        state = random.getstate()  # from which Keras' initializers take their seeds
        try:
            return programs_class()(config, _with_config(task, config), inputs, slice_, schedule_steps)
        finally:
            random.setstate(state)

    programs, size, parts = make_programs(config), batch_size // slice_.num_devices, config.accumulate_steps
    train, evaluation = _compile(programs, batch_size, parts)
    result = Check(
        topology=slice_,
        backend=keras.backend.backend(),
        batch_size=int(batch_size),
        accumulate_steps=parts,
        precision=config.precision,
        train=train,
        evaluation=evaluation,
        state_bytes=programs.state_bytes,
        all_reduce_bytes=programs.gradient_bytes,
        model_flops=3.0 * size * _flops(programs.model),
        total_steps=steps,
    )
    if result.fits:
        result = dataclasses.replace(result, fitting_batch_per_device=size)
    if not result.compiles or result.host_operations or (result.fits and not search):
        return result

    def find(programs, parts, first, largest=True, known=()):
        """A number of images of a device that fits in a step of `parts` micro-batches."""

        def compile_size(number):
            both = known if known and number == size else ()
            both = both or _compile(programs, number * slice_.num_devices, parts, machine_code=False)
            return all(fits_memory(p, slice_) for p in both), max(p.memory_bytes for p in both)

        return fitting_batch(compile_size, slice_.device.memory_bytes, first, unit=parts, largest=largest)

    fitting = find(programs, parts, size, largest=search, known=(train, evaluation))
    changes = []
    if search and fitting >= size:
        most = find(programs, 2 * parts, 2 * fitting, largest=False)
        changes.append(Change(f"accumulate_steps={2 * parts}", most))
    elif search:
        changes += _fitting_parts(programs, slice_, batch_size, size, fitting // parts)
    if search and not config.remat and _has_blocks(programs.model):
        programs = make_programs(_changed(config, remat=True))
        changes.append(Change("remat=True", find(programs, parts, 2 * size)))
    return dataclasses.replace(result, fitting_batch_per_device=fitting, changes=tuple(changes))


def _fitting_parts(programs, slice_, batch_size, size, images):
    """The `Change` of the fewest micro-batches with which a batch fits, in a list; [] if there is nothing to try.

    Args:
        programs: the `Programs`.
        slice_: the `Topology`.
        batch_size: over all devices.
        size: images of a device.
        images: of a micro-batch that fits.
    """
    # Micro-batches need memory for the sum of their gradients, too, so that the first number may not do.
    divisors = [parts for parts in range(2, size + 1) if size % parts == 0 and size // parts <= images]
    for parts in divisors[:_MOST_DIVISORS]:
        both = _compile(programs, batch_size, parts, machine_code=False)
        if all(fits_memory(program, slice_) for program in both):
            return [Change(f"accumulate_steps={parts}", size)]
    tried = " or ".join(map(str, divisors[:_MOST_DIVISORS]))
    return [Change(f"accumulate_steps={tried}", 0)] if tried else []


def _compile(programs, batch_size, accumulate_steps, machine_code=True):
    """The `Program` of training and that of evaluation; the latter is not compiled where the former is refused for
    another reason than memory. Without machine code their memory is known in a tenth of the time."""
    train = programs.train(batch_size, accumulate_steps, machine_code)
    if not train.compiles and not train.out_of_memory:
        return train, train
    return train, programs.evaluation(batch_size, accumulate_steps, machine_code)


def _with_config(task, config):
    """The task of another recipe."""
    other = copy.copy(task)
    other.config = config
    return other


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
