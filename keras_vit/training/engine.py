"""The engine: how a run is computed. The contract with the loop, and what the backends share."""

import abc
import contextlib
import dataclasses
import os
import resource
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
from ml_collections import ConfigDict

from keras_vit import optimizers
from keras_vit.data import InputPipeline
from keras_vit.tasks import Task
from keras_vit.terminal import first_line
from keras_vit.training.diagnosis import first_nonfinite_layer

# What `config.strategy` may be, on every backend.
STRATEGIES = ("auto", "default", "mirrored", "multi_worker", "tpu")
# What `config.shard` may have divided among the devices of JAX: nothing, the optimizer's state and the averages, or
# these and the weights.
SHARDS = ("", "optimizer", "parameters")

OUT_OF_MEMORY = (
    "The memory of a device is full. Three settings help, the first two without changing a number of the training: "
    "accumulate_steps=8 computes the batch in parts, remat=True computes the blocks twice instead of keeping what is "
    "in them, and precision='mixed_bfloat16' halves what is kept; so does half the batch_size."
)


@dataclasses.dataclass(frozen=True)
class TrainOutputs:
    """Outputs of a call of `Engine.train` that did S steps.

    Attributes:
        metrics: "loss", the task's metrics, "grad_norm" (before clipping) and "learning_rate": float32 `(S,)` by name.
        input_wait: seconds spent waiting for batches.
        peak_memory: peak bytes in use so far: of the first accelerator if there is one, else of this process.
        stop_requested: whether any process asked for a stop.
        can_go_on: False if the last of the steps was not finite, and that must not be skipped.
    """

    metrics: dict
    input_wait: float
    peak_memory: int
    stop_requested: bool
    can_go_on: bool


class Engine(abc.ABC):
    """How a run is computed: devices, state and steps. Its methods take and return numpy and plain Python.

    Attributes:
        description: the devices, for people.
        num_devices: devices that share a batch, over all hosts.
        num_hosts, host_index: the processes that share a batch, and which one this is.
        model: the model, once `build` was called.
    """

    description: str
    num_devices: int
    num_hosts: int
    host_index: int
    model: keras.Model

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
            total_steps: steps of the whole run, for the schedule.
            load_weights: `load_weights(model)` is called before averages are taken; None for the initial weights.

        Raises:
            ValueError: the config cannot be satisfied.
        """
        self._config, self._task, self._inputs = config, task, inputs
        self._task_metrics = make_task_metrics(task)
        self._evaluations: dict = {}
        with self._building():
            self.model = task.build_model(inputs)
            if load_weights is not None:
                load_weights(self.model)
            optimizer = make_optimizer(config, total_steps)
            optimizer.build(self.model.trainable_variables)
        self._place(optimizer, averaged=config.ema_decay > 0, scaled=config.precision == "mixed_float16")

    @abc.abstractmethod
    def _building(self):
        """The context in which `build` creates variables."""

    @abc.abstractmethod
    def _place(self, optimizer, averaged, scaled):
        """Puts the state of a run on the devices and makes its step."""

    @abc.abstractmethod
    def train(
        self, first: int, steps: int, *, stop_requested: bool = False, profile_folder: str | None = None
    ) -> TrainOutputs:
        """Does steps number `first` to `first + steps - 1`; ends early only at a step that is not finite.

        Args:
            first: the first step. The first call decides where the input begins; every other one continues the call
                before.
            steps: how many, 1 or more.
            stop_requested: whether this process was asked to stop.
            profile_folder: where to write a trace of the call for TensorBoard; None for no trace.

        Raises:
            ValueError: the devices cannot do it; the message says what would help.
        """

    def _outputs(self, metrics, running, input_wait, peak_memory, stop_requested):
        """`TrainOutputs` of a call: arrays of all its steps, of which the one that ended it is the last that counts."""
        count = min(int(running.sum()) + 1, len(running))
        return TrainOutputs(
            metrics=dict(zip(step_metrics(self._task), metrics[:count].T)),
            input_wait=float(input_wait),
            peak_memory=peak_memory,
            stop_requested=bool(stop_requested),
            can_go_on=bool(running[-1]),
        )

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
        compute = compute or self._task_metrics
        if compute not in self._evaluations:
            self._evaluations[compute] = self._make_sums(compute)
        with self._explained_errors():
            return weighted_means(self._batch_sums(self._evaluations[compute]), self._inputs.test.num_examples)

    @abc.abstractmethod
    def _make_sums(self, compute):
        """The compiled function that evaluates a batch: weighted sums by name, and the sum of the example weights."""

    @abc.abstractmethod
    def _batch_sums(self, sums):
        """What such a function returns for each evaluation batch, an iterator."""

    @abc.abstractmethod
    def swap_ema(self) -> None:
        """Exchanges the weights and their averages on the devices; changes nothing without averages."""

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
        """Writes the state to files whose names begin with `path`; see `state_files`.

        Every host must call it with the same path: some variables are read by all together.

        Raises:
            Diverged: a weight is not finite.
            OSError: it cannot be written.
        """

    @abc.abstractmethod
    def restore(self, path: str | os.PathLike) -> None:
        """Reads the files of `save`, whichever backend and devices wrote them.

        Raises:
            CorruptCheckpointError: the files are damaged.
            ValueError: they are those of another model.
            OSError: they cannot be read now.
        """

    def gather_model(self) -> keras.Model:
        """Returns the model, its weights whole in the memory of this host. Every host must call it."""
        return self.model

    def gather_hosts(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        """Returns the `values` of every host, in their order; all hosts must call it together.

        Args:
            values: a list of integers of at least 0 and below 2^32, of the same length on every host.

        Raises:
            ValueError: another host has ended.
        """
        return [tuple(values)]

    def diagnose(self, step: int) -> str:
        """A phrase that names the layer in which this host's part of the batch of a step stops being finite."""
        batches = self._inputs.train_batches(step, num_hosts=self.num_hosts, host_index=self.host_index)
        images, *_ = next(iter(batches))
        pieces = self.num_devices * self._config.accumulate_steps
        return first_nonfinite_layer(self.gather_model(), np.asarray(images), pieces)

    @contextlib.contextmanager
    def _explained_errors(self):
        """Turns the errors of a device that a setting would prevent into one line."""
        try:
            yield
        except Exception as error:
            reason = first_line(getattr(error, "message", error))
            if "ResourceExhausted" in type(error).__name__ or "RESOURCE_EXHAUSTED" in reason:
                raise ValueError(f"{OUT_OF_MEMORY} Received: {reason}") from error
            raise

    def _profiled(self, folder):
        return contextlib.nullcontext() if folder is None else self._trace(str(folder))


def step_metrics(task):
    """The names of the metrics of a step, in the order of its columns."""
    return ("loss", *task.metrics, "grad_norm", "learning_rate")


def make_optimizer(config, total_steps):
    """The optimizer of a config, not built."""
    schedule = optimizers.Schedule(total_steps=total_steps, **config.schedule)
    return optimizers.get(schedule=schedule, **config.optimizer)


def make_task_metrics(task):
    """The `compute` of `Engine.evaluate` for "loss" and the metrics of a task."""

    def task_metrics(model, batch):
        losses, metrics = task.losses_and_metrics(model, batch, training=False)
        return {"loss": losses, **{name: metrics[name] for name in task.metrics}}

    return task_metrics


def weighted_means(sums, num_examples):
    """The means of an evaluation from `(weighted sums by name, sum of weights)` of each batch."""
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
