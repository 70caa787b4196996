"""Whether a run fits a TPU slice, and how long its steps may take, by the TPU compiler and a roofline."""

import contextlib
import dataclasses
import math

import keras

from keras_vit import cost
from keras_vit.tpu import compiler
from keras_vit.tpu.inputs import input_shapes
from keras_vit.tpu.search import fitting_batch
from keras_vit.tpu.topologies import Topology, get_topology
from keras_vit.training.validation import total_steps, validate_config

# For the schedule of a run whose number of steps is not known; it changes no size.
_SOME_STEPS = 10**6


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the recipe that was compiled.

    Attributes:
        text: such as "remat=True".
        fitting_batch_per_device: images of a device that fit with it; 0 if none was seen to.
    """

    text: str
    fitting_batch_per_device: int


@dataclasses.dataclass(frozen=True)
class Check:
    """What is known of a run on a slice; memory, FLOPs and bytes are of one device.

    Attributes:
        topology: the `Topology`.
        backend: "tensorflow" or "jax".
        batch_size: over all devices.
        accumulate_steps: micro-batches of a step.
        train, evaluation: the `Program` of each step.
        batch_bytes: of a device's part of the batch.
        all_reduce_bytes: of the gradients, float32, which the devices sum.
        model_flops: of the training step by formula: three times `keras_vit.flops(model)` for each image; 0 where the
            model has layers that it does not know.
        total_steps: of the recipe; 0 where the number of training examples is not known.
        fitting_batch_per_device: images of a device that were seen to fit, with `search` the largest number; 0 if none
            was seen to.
        changes: with `search`, what rematerialization and accumulation would allow.
    """

    topology: Topology
    backend: str
    batch_size: int
    accumulate_steps: int
    train: compiler.Program
    evaluation: compiler.Program
    batch_bytes: int
    all_reduce_bytes: int
    model_flops: float
    total_steps: int
    fitting_batch_per_device: int = 0
    changes: tuple[Change, ...] = ()

    @property
    def batch_size_per_device(self):
        return self.batch_size // self.topology.num_devices

    @property
    def compiles(self):
        """Whether both steps compile; one that only lacks memory does."""
        return all(program.compiles or program.out_of_memory for program in (self.train, self.evaluation))

    @property
    def fits(self):
        """Whether both steps compile, fit the memory of a device, and need nothing of the host."""
        return not self.host_operations and all(
            fits_memory(program, self.topology) for program in (self.train, self.evaluation)
        )

    @property
    def host_operations(self):
        """The operations that would wait for the host; there should be none."""
        return tuple(sorted({*self.train.host_operations, *self.evaluation.host_operations}))

    @property
    def error(self):
        """Why a step does not compile, the compiler's message; "" if both do."""
        return self.train.error or self.evaluation.error

    @property
    def memory_bytes(self):
        """Of the step that needs more."""
        return max(self.train.memory_bytes, self.evaluation.memory_bytes)

    @property
    def memory_limit_bytes(self):
        """What a program may use of a device's memory."""
        return self.topology.device.memory_bytes

    @property
    def state_bytes(self):
        """Weights, optimizer and averages, as they lie in the device's memory; 0 without an executable."""
        return max(self.train.argument_bytes - self.batch_bytes, 0)

    @property
    def flops(self):
        """Of a training step, by the compiler, which counts the body of a loop once: times the micro-batches."""
        return self.accumulate_steps * self.train.flops

    @property
    def bytes_accessed(self):
        """What a training step moves between the device and its memory, by the compiler, as `flops`; the update, which
        reads and writes the state and reads the gradients, comes once."""
        update = 2 * self.state_bytes + self.all_reduce_bytes
        return self.accumulate_steps * self.train.bytes_accessed - (self.accumulate_steps - 1) * update

    @property
    def compute_seconds(self):
        """The FLOPs of a training step at the published peak; those by formula, where the compiler counts fewer."""
        flops = max(self.flops, self.model_flops) if self.train.compiles else 0.0
        return flops / self.topology.device.peak_flops

    @property
    def bandwidth_seconds(self):
        """The bytes that a training step moves, at the published bandwidth."""
        return self.bytes_accessed / self.topology.device.bandwidth

    @property
    def all_reduce_seconds(self):
        """The sum of the gradients over the slice: 2 (n - 1) / n times their bytes, at the published interconnect."""
        n = self.topology.num_devices
        return 2 * (n - 1) / n * self.all_reduce_bytes / self.topology.device.interconnect

    @property
    def bound(self):
        """What bounds a step: "compute" or "bandwidth"."""
        return "compute" if self.compute_seconds >= self.bandwidth_seconds else "bandwidth"

    @property
    def step_seconds_estimate(self):
        """A roofline: the longer one of compute and bandwidth, and the sum of the gradients after it; 0 without an
        executable."""
        longer = max(self.compute_seconds, self.bandwidth_seconds)
        return longer + self.all_reduce_seconds if longer else 0.0

    @property
    def images_per_second_estimate(self):
        """Of one device, in training; 0 without an executable."""
        seconds = self.step_seconds_estimate
        return self.batch_size_per_device / seconds if seconds else 0.0

    @property
    def evaluation_images_per_second_estimate(self):
        """Of one device, by the same roofline; 0 without an executable."""
        device = self.topology.device
        seconds = max(self.evaluation.flops / device.peak_flops, self.evaluation.bytes_accessed / device.bandwidth)
        return self.batch_size_per_device // self.accumulate_steps / seconds if seconds else 0.0

    @property
    def device_hours_estimate(self):
        """Of the whole recipe, devices times hours, without evaluation and waiting for input; 0 where not known."""
        return self.total_steps * self.step_seconds_estimate * self.topology.num_devices / 3600

    def to_dict(self):
        """All of it as plain Python, for JSON: bytes, seconds, and the names above."""
        names = [name for name, value in vars(Check).items() if isinstance(value, property)]
        fields = {**dataclasses.asdict(self), **{name: getattr(self, name) for name in names}}
        return fields | {
            "topology": self.topology.name,
            "num_devices": self.topology.num_devices,
            "device_kind": self.topology.device.kind,
            "activation_bytes": self.train.temporary_bytes,
            "program_bytes": self.train.program_bytes,
        }


def check(task, recipe, batch_size, topology, *, search=False):
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
            allow: several compiles of up to a minute each.

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
        with dtype_policy(config.precision):
            return programs_class()(config, task, inputs, slice_, steps or _SOME_STEPS)

    def compile_size(programs, size, known=None):
        """`fitting_batch`'s, of programs that exist."""
        both = known or _compile(programs, size * slice_.num_devices, config.accumulate_steps)
        return all(fits_memory(p, slice_) for p in both), max(p.memory_bytes for p in both)

    programs, size = make_programs(config, task), batch_size // slice_.num_devices
    train, evaluation = _compile(programs, batch_size, config.accumulate_steps)
    result = Check(
        topology=slice_,
        backend=keras.backend.backend(),
        batch_size=batch_size,
        accumulate_steps=config.accumulate_steps,
        train=train,
        evaluation=evaluation,
        batch_bytes=4 * size * (math.prod(inputs.image_shape) + inputs.num_classes + 1),
        all_reduce_bytes=4 * sum(math.prod(weight.shape) for weight in programs.model.trainable_weights),
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
        both = _compile(make_programs(config, task), batch_size, parts) if parts else ()
        if parts and all(fits_memory(program, slice_) for program in both):
            changes.append(Change(f"accumulate_steps={parts}", size))
    return dataclasses.replace(result, fitting_batch_per_device=fitting, changes=tuple(changes))


def fits_memory(program, topology):
    """Whether a `Program` compiles, in the memory of a device of a `Topology`."""
    return program.compiles and program.memory_bytes <= topology.device.memory_bytes


def _compile(programs, batch_size, accumulate_steps):
    """The `Program` of training and that of evaluation; the latter is not compiled where the former is refused for
    another reason than memory."""
    train = programs.train(batch_size, accumulate_steps)
    if not train.compiles and not train.out_of_memory:
        return train, train
    return train, programs.evaluation(batch_size, accumulate_steps)


def programs_class():
    """What compiles the steps of Keras' backend.

    Raises:
        ValueError: training does not run on this backend.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from keras_vit.tpu.tensorflow_programs import TensorFlowPrograms

        return TensorFlowPrograms
    if backend == "jax":
        from keras_vit.tpu.jax_programs import JaxPrograms

        return JaxPrograms
    raise ValueError(
        "Training runs on the backends TensorFlow and JAX: set KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax. "
        f"Received: backend={backend!r}"
    )


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


@contextlib.contextmanager
def dtype_policy(name):
    """While it is open, Keras has the dtype policy of a name."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
