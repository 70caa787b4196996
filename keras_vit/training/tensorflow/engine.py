"""The TensorFlow engine."""

import functools
import math

import numpy as np
import tensorflow as tf

from keras_vit import terminal
from keras_vit.layers.compilation import compiling_for
from keras_vit.training import memory, state_files
from keras_vit.training.engine import Engine
from keras_vit.training.hosts import workers
from keras_vit.training.tensorflow.batches import distributed_batches
from keras_vit.training.tensorflow.gathering import replica_scope
from keras_vit.training.tensorflow.gradients import platform_of
from keras_vit.training.tensorflow.state import State, make_swap_ema
from keras_vit.training.tensorflow.step import make_train_steps


class TensorFlowEngine(Engine):
    """Trains under a `tf.distribute.Strategy`; `Engine` documents the methods.

    Attributes:
        strategy: the default strategy, or a MirroredStrategy, MultiWorkerMirroredStrategy or
            TPUStrategy.
        state: the `State`; `build` sets it.
    """

    _trace = staticmethod(tf.profiler.experimental.Profile)

    def __init__(self, strategy):
        self.strategy = strategy
        self.num_devices = strategy.num_replicas_in_sync
        is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.num_hosts, self.host_index, _ = workers() if is_multi_worker else (1, 0, "")

    @property
    def description(self):
        name = type(self.strategy).__name__.lstrip("_")
        if name == "CollectiveAllReduceStrategy":
            return "MultiWorkerMirroredStrategy"  # its public name
        return name

    def _building(self):
        if platform_of(self.strategy) == "tpu":
            check_tpu_config(self._config)
        if self._config.shard:
            raise ValueError(
                "`shard` requires the JAX backend (KERAS_BACKEND=jax); on TensorFlow it must be "
                f"''. Received: shard={self._config.shard!r}"
            )
        return self.strategy.scope()

    def _place(self, optimizer, averaged, scaled):
        self._check_synchronized_layers()
        self._iterator = None  # the engine may have trained before, on other data
        with self.strategy.scope():
            self.state = State(self.model, optimizer, averaged, scaled)
        self._swap_ema = make_swap_ema(self.strategy, self.state)

    def _check_synchronized_layers(self):
        """Refuses layers that exchange moments between replicas inside a nested graph."""
        config = self._config
        if self.num_devices == 1 or (config.accumulate_steps == 1 and not config.xla):
            return
        for layer in self.model._flatten_layers():
            if getattr(layer, "synchronized", False) and layer.trainable:
                raise ValueError(
                    "On several devices, BatchNorm requires accumulate_steps=1 and xla=False, or "
                    f"the JAX backend. Received: accumulate_steps={config.accumulate_steps}, "
                    f"xla={config.xla}, {self.num_devices} devices, layer={layer.name!r}"
                )

    def _make_train_steps(self, task):
        return make_train_steps(self.strategy, self.state, task, self._config)

    def train(self, first, steps, *, stop_requested=False, profile_folder=None):
        if self._iterator is None:
            train_batches = functools.partial(self._inputs.train_batches, first)
            self._iterator = iter(distributed_batches(self.strategy, self._inputs, train_batches))
        with memory.explained_errors(), self._profiled(profile_folder):
            outputs = self._train_steps(first)(
                self._iterator,
                tf.constant(first),
                tf.constant(steps),
                tf.constant(float(stop_requested)),
            )
            outputs = {name: output.numpy() for name, output in outputs.items()}
        return self._outputs(**outputs)

    def _make_sums(self, compute):
        return self._summed(make_replica_sums(self.strategy, self.model, compute))

    def _summed(self, function):
        """Returns a compiled function that runs `function` on each replica and sums its outputs."""

        def reduce(value):
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)

        def sums(*arguments):
            return tf.nest.map_structure(reduce, self.strategy.run(function, arguments))

        return tf.function(sums, autograph=False)

    def _batch_sums(self, sums):
        # Micro-batches that fit in memory in training also fit here.
        parts = self._config.accumulate_steps
        inputs = self._inputs
        iterator = iter(distributed_batches(self.strategy, inputs, inputs.eval_batches, parts))
        numbers = range(parts * math.ceil(inputs.test.num_examples / inputs.batch_size))
        return (sums(*next(iterator)) for _ in terminal.track(numbers, "evaluating", "batches"))

    def swap_ema(self):
        self._swap_ema()

    def _named_variables(self):
        state = self.state
        return state_files.named_arrays(state.model, state.optimizer, state.variables)

    def save(self, path):
        pieces = ((name, None, variable.numpy()) for name, variable in self._named_variables())
        if self.host_index == 0:
            state_files.write_state(path, pieces)
            return
        for name, _, array in pieces:  # reading some variables requires all hosts
            state_files.check_finite(name, array)

    def restore(self, path):
        with state_files.StateReader(path) as reader, self.strategy.scope():
            # Check all arrays before the first one is assigned.
            stored = [
                (name, variable)
                for name, variable in self._named_variables()
                if reader.check(name, variable.shape)
            ]
            for name, variable in stored:
                variable.assign(tf.cast(reader.read(name, variable.shape), variable.dtype))

    def _peak_memory(self):
        if tf.config.list_logical_devices("GPU"):
            return tf.config.experimental.get_memory_info("GPU:0")["peak"]
        return super()._peak_memory()

    @functools.cached_property
    def _sum_over_replicas(self):
        # Cache the function, because a new function would be traced in every call.
        return self._summed(tf.identity)

    def gather_hosts(self, values):
        if self.num_hosts == 1:
            return super().gather_hosts(values)
        # float64, so that the sum over replicas is exact.
        rows = np.zeros((self.num_hosts, len(values)))
        rows[self.host_index] = values
        try:
            rows = self._sum_over_replicas(tf.constant(rows)).numpy()
        except tf.errors.OpError as error:
            reason = terminal.first_line(error)
            raise ValueError(f"Another host has exited; see its log. Received: {reason}") from error
        # Each replica of a host adds the host's row once.
        replicas_per_host = self.num_devices // self.num_hosts
        return [tuple(map(int, row)) for row in rows / replicas_per_host]


def check_tpu_config(config):
    """Raises a `ValueError` if the config of a run cannot be used on a TPU."""
    if config.xla:
        raise ValueError(
            "`xla` must be False on a TPU, where XLA always compiles the step. Received: xla=True"
        )


def make_replica_sums(strategy, model, compute):
    """Returns the function that evaluates a replica's part of a batch; see `Engine._make_sums`."""

    @tf.autograph.experimental.do_not_convert
    def replica_sums(*batch):
        weights = batch[-1]
        with replica_scope(), compiling_for(platform_of(strategy)):
            values = compute(model, batch)
        sums = {name: tf.reduce_sum(value * weights) for name, value in values.items()}
        return sums, tf.reduce_sum(weights)

    return replica_sums
