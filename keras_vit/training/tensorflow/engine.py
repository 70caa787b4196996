"""The TensorFlow engine."""

import functools

import numpy as np
import tensorflow as tf

from keras_vit import terminal
from keras_vit.layers.compilation import compiling_for
from keras_vit.training import state_files
from keras_vit.training.engine import Engine, process_peak_memory
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
        several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.num_hosts, self.host_index, _ = workers() if several else (1, 0, "")

    @property
    def description(self):
        name = type(self.strategy).__name__.lstrip("_")
        if name == "CollectiveAllReduceStrategy":
            return "MultiWorkerMirroredStrategy"  # its public name
        return name

    def build(self, config, task, inputs, total_steps, load_weights=None):
        if config.xla and isinstance(self.strategy, tf.distribute.TPUStrategy):
            raise ValueError(
                "`xla` must be False on a TPU, where XLA always compiles the step. Received: "
                "xla=True"
            )
        if config.shard:
            raise ValueError(
                "`shard` requires the JAX backend (KERAS_BACKEND=jax); on TensorFlow it must be "
                f"''. Received: shard={config.shard!r}"
            )
        super().build(config, task, inputs, total_steps, load_weights)

    def _building(self):
        return self.strategy.scope()

    def _place(self, optimizer, averaged, scaled):
        self._check_synchronized_layers()
        self._iterator = None  # the engine may have trained before, on other data
        with self.strategy.scope():
            self.state = State(self.model, optimizer, averaged, scaled)
        self._swap_ema = make_swap_ema(self.strategy, self.state)

    def _check_synchronized_layers(self):
        """Refuses layers that exchange moments between replicas inside of a nested graph."""
        config = self._config
        synchronized = [
            layer.name
            for layer in self.model._flatten_layers()
            if getattr(layer, "synchronized", False) and layer.trainable
        ]
        is_nested = config.accumulate_steps > 1 or config.xla
        if synchronized and is_nested and self.num_devices > 1:
            raise ValueError(
                "On several devices, BatchNorm requires accumulate_steps=1 and xla=False, or the "
                f"JAX backend. Received: accumulate_steps={config.accumulate_steps}, "
                f"xla={config.xla}, {self.num_devices} devices, layer={synchronized[0]!r}"
            )

    def _make_train_steps(self, task):
        return make_train_steps(self.strategy, self.state, task, self._config)

    def train(self, first, steps, *, stop_requested=False, profile_folder=None):
        if self._iterator is None:
            train_batches = functools.partial(self._inputs.train_batches, first)
            self._iterator = iter(distributed_batches(self.strategy, self._inputs, train_batches))
        with self._explained_errors(), self._profiled(profile_folder):
            outputs = self._train_steps(first)(
                self._iterator,
                tf.constant(first),
                tf.constant(steps),
                tf.constant(float(stop_requested)),
            )
            outputs = {name: output.numpy() for name, output in outputs.items()}
        return self._outputs(peak_memory=_peak_memory(), **outputs)

    def _make_sums(self, compute):
        replica_sums = make_replica_sums(self.strategy, self.model, compute)

        def reduce(value):
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)

        @tf.function
        def sums(*batch):
            replica, weight = self.strategy.run(replica_sums, args=batch)
            return {name: reduce(value) for name, value in replica.items()}, reduce(weight)

        return sums

    def _batch_sums(self, sums):
        # Micro-batches that fit in memory in training also fit here.
        parts = self._config.accumulate_steps
        inputs = self._inputs
        iterator = iter(distributed_batches(self.strategy, inputs, inputs.eval_batches, parts))
        number = parts * -(-inputs.test.num_examples // inputs.batch_size)
        return (
            sums(*next(iterator)) for _ in terminal.track(range(number), "evaluating", "batches")
        )

    def swap_ema(self):
        self._swap_ema()

    def _named_variables(self):
        state = self.state
        names = state_files.state_names(state.model, state.optimizer, state.variables)
        return [
            pair
            for field, each in names.items()
            for pair in zip(each, getattr(state.variables, field))
        ]

    def save(self, path):
        pieces = ((name, None, variable.numpy()) for name, variable in self._named_variables())
        if self.host_index == 0:
            state_files.write_state(path, pieces)
            return
        for name, _, array in pieces:  # reading some variables requires all hosts
            state_files.check_finite(name, array)

    def restore(self, path):
        with state_files.StateReader(path) as reader, self.strategy.scope():
            pairs = [
                pair for pair in self._named_variables() if reader.check(pair[0], pair[1].shape)
            ]
            for name, variable in pairs:
                variable.assign(tf.cast(reader.read(name, variable.shape), variable.dtype))

    @functools.cached_property
    def _sum_over_replicas(self):
        # Cache the function, because a new function would be traced in every call.
        run = self.strategy.run
        reduce = self.strategy.reduce
        op = tf.distribute.ReduceOp.SUM
        return tf.function(
            lambda rows: reduce(op, run(tf.identity, args=(rows,)), None), autograph=False
        )

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
        return [tuple(map(int, row)) for row in rows * self.num_hosts / self.num_devices]


def make_replica_sums(strategy, model, compute):
    """Returns the function that evaluates a replica's part of a batch; see `Engine._make_sums`."""

    @tf.autograph.experimental.do_not_convert
    def replica_sums(*batch):
        weights = batch[-1]
        with replica_scope(), compiling_for(platform_of(strategy)):
            values = compute(model, batch)
        return {name: tf.reduce_sum(v * weights) for name, v in values.items()}, tf.reduce_sum(
            weights
        )

    return replica_sums


def _peak_memory():
    if tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return process_peak_memory()
