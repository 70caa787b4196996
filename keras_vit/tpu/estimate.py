"""Compiles the steps of a run for a TPU slice and searches for settings that fit in its devices'
memory."""

import dataclasses
import functools

import keras
from ml_collections import ConfigDict

from keras_vit import cost, tasks, terminal
from keras_vit.layers import AxialTransformerBlock, TransformerBlock
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
        search: whether to search for the largest batch that fits. The search also tries
            rematerialization and more micro-batches. If False, `Check.fitting_batch_per_device` may
            not be the largest.

    Returns:
        A `Check`.

    Raises:
        ImportError: jax, jaxlib or libtpu is not installed; run `pip install "keras_vit[aot]"`.
        ValueError: the slice is unknown, the config is invalid, or the backend is neither
            TensorFlow nor JAX.
    """
    # Resolve the config, the inputs and the schedule.
    slice_ = get_topology(topology)
    devices = slice_.num_devices
    config = ConfigDict({**recipe.to_dict(), "batch_size": batch_size})
    validate_config(config, devices)
    compiler.check_installed()
    task.load_models(load_any_model, terminal.write)
    inputs = input_shapes(config, task.target)
    steps = (
        total_steps(config, inputs.num_examples) if config.total_steps or inputs.num_examples else 0
    )
    # Lengthen the schedule if necessary, because it must be longer than its warm-up.
    schedule_steps = max(steps or _SOME_STEPS, config.schedule.warmup_steps + 1)

    def make_programs(config):
        return programs_class()(
            config, tasks.get(config, task.with_config(config)), inputs, slice_, schedule_steps
        )

    @functools.cache
    def compile_steps(programs, images, parts):
        """Returns the training and evaluation `Program`s for `images` images per device.

        If the training step fails for a reason other than memory, returns its `Program` for both
        steps.
        """
        train = programs.train(images * devices, parts)
        if not train.compiles and not train.out_of_memory:
            return train, train
        return train, programs.evaluation(images * devices, parts)

    # Compile both steps.
    programs = make_programs(config)
    size = batch_size // devices
    parts = config.accumulate_steps
    train, evaluation = compile_steps(programs, size, parts)
    try:
        model_flops = 3.0 * size * cost.flops(programs.model)
    except ValueError:
        model_flops = 0.0  # the model has layers whose cost is unknown
    result = Check(
        topology=slice_,
        backend=keras.backend.backend(),
        batch_size=batch_size,
        accumulate_steps=parts,
        precision=config.precision,
        train=train,
        evaluation=evaluation,
        state_bytes=programs.state_bytes,
        all_reduce_bytes=programs.gradient_bytes,
        model_flops=model_flops,
        total_steps=steps,
    )
    result = dataclasses.replace(result, fitting_batch_per_device=size if result.fits else 0)
    if not result.compiles or (result.fits and not search):
        return result

    def find(programs, parts, first, any_will_do=True):
        """Returns a number of images per device that fit in a step of `parts` micro-batches."""

        def compile_size(images):
            both = compile_steps(programs, images, parts)
            return max(both, key=lambda p: (not p.compiles, not p.out_of_memory, p.memory_bytes))

        limit = slice_.device.memory_bytes
        return largest_batch(
            compile_size, limit, first, programs.state_bytes, unit=parts, any_will_do=any_will_do
        )

    # Find a batch that fits. With `search`, also try more micro-batches and rematerialization.
    fitting = find(programs, parts, size, any_will_do=not search)
    changes = []
    if search and fitting:
        # Try more micro-batches for the requested batch or, if that fits, for twice the largest
        # batch.
        divisors = (
            n for n in range(2, size + 1) if size % n == 0 and size // n <= fitting // parts
        )
        more = 2 * parts if fitting >= size else next(divisors)
        first = -(-2 * fitting // more) * more if fitting >= size else size
        changes.append((f"accumulate_steps={more}", find(programs, more, first)))
    blocks = AxialTransformerBlock, TransformerBlock
    if (
        search
        and not config.remat
        and any(isinstance(layer, blocks) for layer in programs.model.layers)
    ):
        rematerialized = make_programs(ConfigDict({**config.to_dict(), "remat": True}))
        changes.append(("remat=True", find(rematerialized, parts, 2 * (fitting or size))))
    return dataclasses.replace(result, fitting_batch_per_device=fitting, changes=tuple(changes))


def programs_class():
    """Returns the subclass of `Programs` for the active Keras backend."""
    if keras.backend.backend() == "jax":
        from keras_vit.tpu.jax_programs import JaxPrograms

        return JaxPrograms
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "KERAS_BACKEND must be tensorflow or jax. Received: "
            f"backend={keras.backend.backend()!r}"
        )
    from keras_vit.tpu.tensorflow_programs import TensorFlowPrograms

    return TensorFlowPrograms
