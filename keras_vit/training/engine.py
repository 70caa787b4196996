"""The interface between the training loop and the engines, and code that both engines share."""

import abc
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
from ml_collections import ConfigDict

from keras_vit import optimizers
from keras_vit.data import InputPipeline
from keras_vit.tasks import Task
from keras_vit.training import freezing, memory
from keras_vit.training.diagnosis import first_nonfinite_layer
from keras_vit.training.update import step_metrics

# Allowed values of `config.shard`. TensorFlow supports only "".
SHARDS = ("", "optimizer", "parameters")


@dataclasses.dataclass(frozen=True)
class TrainOutputs:
    """The outputs of one call of `Engine.train` that ran S steps.

    Attributes:
        metrics: dict of float32 `(S,)`: "loss", the task's metrics, "grad_norm" (before clipping),
            "learning_rate".
        input_wait: seconds spent waiting for batches.
        peak_memory: peak memory in bytes so far: of the first accelerator if known, otherwise of
            this process; 0 if unknown.
        stop_requested: whether any process was asked to stop.
        can_continue: False if training must end because the loss, a metric or a gradient of the
            last step was not finite.
    """

    metrics: dict
    input_wait: float
    peak_memory: int
    stop_requested: bool
    can_continue: bool


class Engine(abc.ABC):
    """Manages the devices, the training state and the compiled steps.

    Attributes:
        description: description of the devices, for logs.
        num_devices: number of devices that share a batch, over all hosts.
        num_hosts, host_index: number of processes that share a batch, and the index of this
            process.
        model: the model; `build` sets it.
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
        """Creates the model, the optimizer and the EMA on the devices.

        Args:
            config: the config of the run.
            task: the `tasks.Task`.
            inputs: the `data.InputPipeline`.
            total_steps: number of steps of the whole run, for the learning-rate schedule.
            load_weights: called with the model before the EMA is initialized; None for random
                weights.

        Raises:
            ValueError: the config is invalid.
        """
        self._config = config
        self._task = task
        self._inputs = inputs
        self._evaluations: dict = {}
        self._compiled: dict = {}
        with self._building():
            self.model = task.make_model(inputs)
            if load_weights is not None:
                load_weights(self.model)
            self._late_weights = freezing.apply(config, self.model)
            optimizer = make_optimizer(config, total_steps)
            optimizer.build(self.model.trainable_variables)
            optimizer.start_at(config.unfreeze_at_step, self._late_weights)
        self._place(
            optimizer, averaged=config.ema_decay > 0, scaled=config.precision == "mixed_float16"
        )

    @abc.abstractmethod
    def _building(self):
        """Returns the context in which `build` creates variables; raises a `ValueError` if the
        engine does not support the config."""

    @abc.abstractmethod
    def _place(self, optimizer, averaged, scaled):
        """Places the training state on the devices."""

    @abc.abstractmethod
    def _make_train_steps(self, task):
        """Returns the compiled training function for a task."""

    def _train_steps(self, step):
        """Returns the compiled training function for a step; each variant of the task has its own
        function."""
        variant = self._task.variant_of_step(step)
        is_late = step >= self._config.unfreeze_at_step
        key = (variant, is_late)
        if key not in self._compiled:
            task = variant if is_late else freezing.Held(variant, self._late_weights)
            self._compiled[key] = self._make_train_steps(task)
        return self._compiled[key]

    @abc.abstractmethod
    def train(
        self,
        first: int,
        steps: int,
        *,
        stop_requested: bool = False,
        profile_folder: str | None = None,
    ) -> TrainOutputs:
        """Runs steps `first` to `first + steps - 1`. Stops early if `can_continue` becomes False.

        Args:
            first: index of the first step. The first call starts the input pipeline at this step;
                later calls read the next batches.
            steps: number of steps, 1 or more.
            stop_requested: whether this process was asked to stop.
            profile_folder: folder for a TensorBoard trace of this call; None for no trace.

        Returns:
            A `TrainOutputs`.

        Raises:
            ValueError: a device is out of memory.
        """

    def _outputs(self, metrics, running, input_wait, stop_requested):
        """Returns the `TrainOutputs` of a call. Omits the steps after a step that ended
        training."""
        metrics = metrics[: int(running.sum()) + 1]
        return TrainOutputs(
            dict(zip(step_metrics(self._task), metrics.T)),
            float(input_wait),
            self._peak_memory(),
            bool(stop_requested),
            bool(running[-1]),
        )

    def _peak_memory(self):
        return memory.process_peak_memory()

    def evaluate(self, compute: Callable | None = None) -> dict[str, float]:
        """Computes exact weighted means over all evaluation examples.

        Args:
            compute: function `compute(model, batch)` in `keras.ops` that returns a dict of float32
                `(B,)`; None computes "loss" and the metrics of the task.

        Returns:
            A dict of floats. Its item "examples" is the number of readable, labeled examples.

        Raises:
            ValueError: no example is readable and labeled, or a device is out of memory.
        """
        results = self._task.results if compute is None else dict
        compute = compute or self._task.evaluate
        if compute not in self._evaluations:
            self._evaluations[compute] = self._make_sums(compute)
        with memory.explained_errors():
            sums = self._batch_sums(self._evaluations[compute])
            return results(weighted_means(sums, self._inputs.test.num_examples))

    @abc.abstractmethod
    def _make_sums(self, compute):
        """Returns a compiled function from a batch to its `({name: weighted sum}, weight)`, where
        `weight` is the sum of the example weights."""

    @abc.abstractmethod
    def _batch_sums(self, sums):
        """Applies `sums`, a function returned by `_make_sums`, to all evaluation batches; iterates
        over its outputs."""

    @abc.abstractmethod
    def swap_ema(self) -> None:
        """Swaps the weights and the EMA on the devices; does nothing without an EMA."""

    @contextlib.contextmanager
    def ema_scope(self) -> Iterator[None]:
        """Returns a context in which the EMA, if enabled, replaces the weights of the model."""
        self.swap_ema()
        try:
            yield
        finally:
            self.swap_ema()

    @abc.abstractmethod
    def save(self, path: str | os.PathLike) -> None:
        """Writes the state to files whose names begin with `path`; see `state_files`.

        Every host must call it with the same path, because reading some variables requires all
        hosts.

        Raises:
            Diverged: a weight is not finite.
            OSError: a file cannot be written.
        """

    @abc.abstractmethod
    def restore(self, path: str | os.PathLike) -> None:
        """Restores the state from files that `save` wrote, possibly on another backend or other
        devices.

        Raises:
            CorruptCheckpointError: the files are damaged.
            ValueError: the files do not match the model, the optimizer or `ema_decay`.
            OSError: a file cannot be read, for example because the network is down.
        """

    def gather_model(self) -> keras.Model:
        """Returns the model with unsharded weights on this host. Every host must call it."""
        return self.model

    def gather_hosts(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        """Returns the `values` of every host, in order. Every host must call it.

        Args:
            values: list of integers in [0, 2^32), of the same length on every host.

        Raises:
            ValueError: another host has exited.
        """
        return [tuple(values)]

    def diagnose(self, step: int) -> str:
        """Searches for the first layer with a non-finite output, and returns a phrase with the
        result.

        The search uses this host's part of the batch of `step`.
        """
        batches = self._inputs.train_batches(
            step, num_hosts=self.num_hosts, host_index=self.host_index
        )
        images, *_ = next(iter(batches))
        num_batches = self.num_devices * self._config.accumulate_steps
        return first_nonfinite_layer(self.gather_model(), np.asarray(images), num_batches)

    def _profiled(self, folder):
        return self._trace(str(folder)) if folder else contextlib.nullcontext()


def make_optimizer(config, total_steps):
    """Returns the unbuilt optimizer of a config."""
    schedule = optimizers.Schedule(total_steps=total_steps, **config.schedule)
    return optimizers.get(schedule=schedule, **config.optimizer)


def weighted_means(sums, num_examples):
    """Computes the means of an evaluation from the `({name: weighted sum}, sum of weights)` of each
    batch."""
    totals = {}
    weight = 0.0
    for batch_sums, batch_weight in sums:
        # Sum in float64, because float32 represents integers exactly only up to 2^24.
        weight += float(np.asarray(batch_weight))
        for name, value in batch_sums.items():
            totals[name] = totals.get(name, 0.0) + float(np.asarray(value))
    if not weight:
        raise ValueError(
            "At least one evaluation example must be readable and labeled. Received: "
            f"{num_examples} examples"
        )
    return {**{name: value / weight for name, value in totals.items()}, "examples": weight}
