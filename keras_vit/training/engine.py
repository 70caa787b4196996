"""What the loop needs of an engine, and choosing one."""

import abc
import contextlib
import dataclasses
import os
import resource
import zlib
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
from ml_collections import ConfigDict

from keras_vit import optimizers
from keras_vit.data import InputPipeline
from keras_vit.tasks import Task

# What `config.strategy` may be, on every backend.
STRATEGIES = ("auto", "default", "mirrored", "multi_worker", "tpu")


@dataclasses.dataclass(frozen=True)
class TrainOutputs:
    """What a call of `Engine.train` gives; S is the number of steps that were done.

    Attributes:
        metrics: "loss", the task's metrics, "grad_norm" (before clipping) and "learning_rate": float32 `(S,)` by name.
        example_weights: float32 `(S, examples of this process)`.
        input_wait: seconds spent waiting for batches.
        peak_memory: bytes in use at the peak so far: of the first accelerator if there is one, else of this process.
        stop_requested: whether any process asked for a stop.
        can_go_on: False if the last of the steps was not finite, and that must not be skipped.
    """

    metrics: dict
    example_weights: np.ndarray
    input_wait: float
    peak_memory: int
    stop_requested: bool
    can_go_on: bool


class CorruptCheckpointError(ValueError):
    """The content of a checkpoint is damaged: reading it again would not help."""


class Engine(abc.ABC):
    """How a run is computed: devices, state and steps. Its methods take and give numpy and plain Python.

    Attributes:
        description: what it computes on, for people.
        num_devices: devices that share a batch, over all hosts.
        num_hosts, host_index: the processes that share a batch, and which one this is.
        model: the model, once `build` was called.
        saves_on_every_host: whether each host writes a part of a checkpoint, instead of the chief all of it.
    """

    description: str
    num_devices: int
    num_hosts: int
    host_index: int
    model: keras.Model
    saves_on_every_host: bool = False

    @abc.abstractmethod
    def build(
        self,
        config: ConfigDict,
        task: Task,
        inputs: InputPipeline,
        total_steps: int,
        load_weights: Callable[[keras.Model], object] | None = None,
    ) -> None:
        """Creates model, optimizer and averages on the devices.

        Args:
            config: the recipe.
            task: the `tasks.Task`.
            inputs: the `data.InputPipeline`.
            total_steps: of the whole run, for the schedule.
            load_weights: `load_weights(model)` is called before averages are taken; None leaves the initial weights.

        Raises:
            ValueError: the config cannot be satisfied.
        """

    @abc.abstractmethod
    def train(
        self, first: int, steps: int, *, stop_requested: bool = False, profile_folder: str | None = None
    ) -> TrainOutputs:
        """Does steps number `first` to `first + steps - 1`, and ends early only at a step that was not finite.

        Args:
            first: the first step. The first call decides where the input begins; every other one goes on where the
                one before ended.
            steps: how many, 1 or more.
            stop_requested: whether this process was asked to stop.
            profile_folder: where to write a trace of the call for TensorBoard; None for no trace.

        Returns:
            `TrainOutputs`.

        Raises:
            ValueError: the devices cannot do it; the message says what would help.
        """

    @abc.abstractmethod
    def evaluate(self, compute: Callable | None = None) -> dict[str, float]:
        """Weighted means over all evaluation examples, exact whatever the batches.

        Args:
            compute: `compute(model, batch)` to a dict of float32 `(B,)`, in `keras.ops`; None for "loss" and the
                metrics of the task.

        Returns:
            A dict of floats, with "examples": how many can be read and have a label.

        Raises:
            ValueError: no example can be read, or none has a label.
        """

    @abc.abstractmethod
    def swap_ema(self) -> None:
        """Lets the weights and their averages trade places on the devices; changes nothing if there are none."""

    @contextlib.contextmanager
    def ema_scope(self) -> Iterator[None]:
        """While it is open, the model has the averages as its weights, if there are any."""
        self.swap_ema()
        try:
            yield
        finally:
            self.swap_ema()

    @abc.abstractmethod
    def save(self, path: str | os.PathLike) -> None:
        """Writes model, optimizer, averages and loss scale to files whose names begin with `path`.

        Every host must call it, since some variables are read by all together. With `saves_on_every_host` the path is
        the same on all of them, and none goes on before all have written.

        Raises:
            ValueError: a weight is not finite; nothing was written.
            OSError: it cannot be written.
        """

    @abc.abstractmethod
    def restore(self, path: str | os.PathLike) -> str:
        """Reads what `save` wrote, of this backend's engine or another's.

        Returns:
            The name of the backend that wrote it.

        Raises:
            CorruptCheckpointError: the files are damaged.
            ValueError: they are those of another model.
            OSError: they cannot be read now; a `FileNotFoundError` where one is missing.
        """

    @abc.abstractmethod
    def new_engine(self) -> "Engine":
        """An engine on the same devices, without a model; for an evaluator that trains."""

    def device_memory(self) -> tuple[int, bool] | None:
        """`(bytes, on_cpu)` for the estimate of `memory`: what one device has, 0 where that is not known; and whether
        the devices are this machine's processor. None on an engine whose memory the formulas do not describe."""
        return None

    def gather_model(self) -> keras.Model:
        """The model, its weights whole in the memory of this host. Every host must call it."""
        return self.model

    def gather_hosts(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        """What every host passes to it, on each of them; all hosts must call it together.

        Args:
            values: a list of integers of at least 0 and below 2^32, of the same length on every host.

        Returns:
            A list with a tuple of integers for each host, in their order.

        Raises:
            ValueError: another host has ended.
        """
        if self.num_hosts > 1:
            raise NotImplementedError("an engine of several hosts has a `gather_hosts` of its own")
        return [tuple(values)]

    def weights_checksum(self) -> int:
        """A number of 32 bits from the first and the last trainable weights, the same on hosts that have the same."""
        weights = self.model.trainable_weights
        arrays = [keras.ops.convert_to_numpy(weights[index]) for index in (0, -1)]
        return zlib.crc32(b"".join(array.tobytes() for array in arrays))

    @abc.abstractmethod
    def diagnose(self, step: int) -> str:
        """A phrase that names the layer in which the batch of a step stops being finite."""


def step_metrics(task):
    """The names of the metrics of a step, in the order of its columns: the loss, the task's, and the engine's own."""
    return ("loss", *task.metrics, "grad_norm", "learning_rate")


def make_optimizer(config, total_steps):
    """The optimizer of a config, not built; its schedule ends after `total_steps`.

    Raises:
        ValueError: an argument is out of range.
    """
    schedule = optimizers.Schedule(total_steps=total_steps, **config.schedule)
    return optimizers.get(schedule=schedule, **config.optimizer)


def make_task_metrics(task):
    """The `compute` of `Engine.evaluate` for "loss" and the metrics of a task."""

    def task_metrics(model, batch):
        losses, metrics = task.losses_and_metrics(model, batch, training=False)
        return {"loss": losses, **{name: metrics[name] for name in task.metrics}}

    return task_metrics


def weighted_means(sums, num_examples):
    """The means over an evaluation.

    Args:
        sums: for each batch, the weighted sums by name and the sum of the example weights: scalars.
        num_examples: how many there are, for the message.

    Returns:
        A dict of floats, with "examples": how many had a weight.

    Raises:
        ValueError: no example has a weight.
    """
    totals, weight = {}, 0.0
    for batch_sums, batch_weight in sums:
        # In float64: float32 would stop counting single examples at 2^24.
        weight += float(np.asarray(batch_weight))
        for name, value in batch_sums.items():
            totals[name] = totals.get(name, 0.0) + float(np.asarray(value))
    if not weight:
        raise ValueError(f"No evaluation example can be read and has a label. Received: {num_examples} examples")
    return {**{name: value / weight for name, value in totals.items()}, "examples": weight}


def process_peak_memory():
    """Bytes that this process had in use at its peak."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB


OUT_OF_MEMORY = (
    "The memory of a device is full. Three settings help, the first two without changing a number of the training: "
    "accumulate_steps=8 computes the batch in parts, remat=True computes the blocks twice instead of keeping what is "
    "in them, and precision='mixed_bfloat16' halves what is kept; so does half the batch_size."
)


def choose_engine(config: ConfigDict) -> Engine:
    """The engine for Keras' backend, on the devices that a config asks for.

    On several hosts or a TPU, it must come before every other operation of the backend in the process.

    Raises:
        ValueError: there is no engine for this backend, or the devices are not there.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from keras_vit.training.tensorflow import TensorFlowEngine, choose_strategy

        return TensorFlowEngine(choose_strategy(config.strategy, config.tpu_address))
    if backend == "jax":
        from keras_vit.training.jax import JaxEngine, choose_mesh

        return JaxEngine(choose_mesh(config.strategy, config.tpu_address))
    raise ValueError(
        "Training runs on the backends TensorFlow and JAX: set KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax. "
        f"Received: backend={backend!r}"
    )
