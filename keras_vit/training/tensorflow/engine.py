"""The engine on TensorFlow."""

import contextlib
import functools

import numpy as np
import tensorflow as tf

from keras_vit import terminal
from keras_vit.training import state_files
from keras_vit.training.engine import (
    OUT_OF_MEMORY,
    Engine,
    TrainOutputs,
    make_optimizer,
    make_task_metrics,
    process_peak_memory,
    step_metrics,
    weighted_means,
)
from keras_vit.training.hosts import hosts_and_index
from keras_vit.training.memory import available_memory
from keras_vit.training.nonfinite import Diverged, first_nonfinite_layer
from keras_vit.training.tensorflow import batches
from keras_vit.training.tensorflow.checkpoint_reader import read_error
from keras_vit.training.tensorflow.diagnosis import make_compute_gradients
from keras_vit.training.tensorflow.state import State, make_swap_ema, read_state_files
from keras_vit.training.tensorflow.step import make_train_steps

# The fields of a config that are options of `make_train_steps`.
STEP_OPTIONS = ("batch_size", "seed", "accumulate_steps", "clip_norm", "ema_decay", "skip_nonfinite", "xla")


class TensorFlowEngine(Engine):
    """Trains under a `tf.distribute.Strategy`; see `Engine`.

    Args:
        strategy: of one device, MirroredStrategy, MultiWorkerMirroredStrategy or TPUStrategy.

    Attributes:
        strategy: the argument.
        state: the `State`, once `build` was called.
    """

    def __init__(self, strategy):
        self.strategy = strategy
        self.num_devices = strategy.num_replicas_in_sync
        several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self.num_hosts, self.host_index = hosts_and_index() if several else (1, 0)
        self._iterator = None
        self._evaluations = {}

    @property
    def description(self):
        name = type(self.strategy).__name__
        # TensorFlow's public names of two of its classes.
        return {"CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy"}.get(name, name.lstrip("_"))

    @property
    def model(self):
        return self.state.model

    def build(self, config, task, inputs, total_steps, load_weights=None):
        if config.xla and isinstance(self.strategy, tf.distribute.TPUStrategy):
            raise ValueError("On a TPU everything is compiled, and `xla` must be False. Received: xla=True")
        if config.shard:
            raise ValueError(
                "`shard` is for the JAX backend, KERAS_BACKEND=jax; on TensorFlow it must be ''. "
                f"Received: shard={config.shard!r}"
            )
        self._config, self._task, self._inputs = config, task, inputs
        self._task_metrics = make_task_metrics(task)
        with self.strategy.scope():
            model = task.build_model(inputs)
            if load_weights is not None:
                load_weights(model)
            optimizer = make_optimizer(config, total_steps)
            optimizer.build(model.trainable_variables)
            scaled = config.precision == "mixed_float16"
            self.state = State(model, optimizer, averaged=config.ema_decay > 0, scaled=scaled)
        self._swap_ema = make_swap_ema(self.strategy, self.state)
        options = {name: config[name] for name in STEP_OPTIONS}
        self._train_steps = make_train_steps(self.strategy, self.state, task, **options)

    def train(self, first, steps, *, stop_requested=False, profile_folder=None):
        if self._iterator is None:
            self._iterator = iter(batches.train_batches(self.strategy, self._inputs, first))
        with _explained_errors(), _profile(profile_folder):
            outputs = self._train_steps(
                self._iterator, tf.constant(first), tf.constant(steps), tf.constant(float(stop_requested))
            )
            outputs = {name: output.numpy() for name, output in outputs.items()}
        # The step that ended the call is the last one that counts.
        count = min(int(outputs["running"].sum()) + 1, steps)
        metrics = outputs["metrics"][:count]
        return TrainOutputs(
            metrics=dict(zip(step_metrics(self._task), metrics.T)),
            example_weights=outputs["example_weights"][:count],
            input_wait=float(outputs["input_wait"]),
            peak_memory=_peak_memory(),
            stop_requested=bool(outputs["stop_requested"]),
            can_go_on=bool(outputs["running"][-1]),
        )

    def evaluate(self, compute=None):
        compute = compute or self._task_metrics
        if compute not in self._evaluations:
            self._evaluations[compute] = self._make_sums(compute)
        sums = self._evaluations[compute]
        inputs = self._inputs
        parts = self._config.accumulate_steps  # what fits into memory in training fits here
        iterator = iter(batches.eval_batches(self.strategy, inputs, parts))
        number = parts * -(-inputs.test.num_examples // inputs.batch_size)
        with _explained_errors():
            batch_sums = (sums(*next(iterator)) for _ in terminal.track(range(number), "evaluating", "batches"))
            return weighted_means(batch_sums, inputs.test.num_examples)

    def _make_sums(self, compute):
        replica_sums = make_replica_sums(self.model, compute)

        @tf.function
        def sums(*batch):
            reduce = lambda value: self.strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None)  # noqa: E731
            replica, weight = self.strategy.run(replica_sums, args=batch)
            return {name: reduce(value) for name, value in replica.items()}, reduce(weight)

        return sums

    def new_engine(self):
        return TensorFlowEngine(self.strategy)

    def device_memory(self):
        if any(tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU")):
            return 0, False  # TensorFlow does not say what they have
        return available_memory(), True

    def swap_ema(self):
        self._swap_ema()

    def save(self, path):
        if not self.state.all_finite():
            raise Diverged(
                "The weights are not finite any more. A lower learning rate (--config.schedule.base) may help"
            )
        try:
            self.state.checkpoint.write(str(path))
        except tf.errors.OpError as error:
            raise OSError(error.message.split("\n")[0]) from error

    def restore(self, path):
        if state_files.has_state(path):
            with self.strategy.scope():
                read_state_files(self.state, path)
            return "jax"
        try:
            self.state.restore(str(path))
        except (tf.errors.OpError, AssertionError, LookupError, RuntimeError, ValueError) as error:
            raise read_error(error) from error
        return "tensorflow"

    @functools.cached_property
    def _sum_over_replicas(self):
        # Of the engine and not of the call, which would be traced anew each time.
        def summed(rows):
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, self.strategy.run(tf.identity, args=(rows,)), None)

        return tf.function(summed, autograph=False)

    def gather_hosts(self, values):
        if self.num_hosts == 1:
            return super().gather_hosts(values)
        # Two digits of 16 bits, which float32 holds exactly even as a sum over the replicas of a host.
        digits = np.array([divmod(value, 2**16) for value in values], np.float32)
        rows = np.zeros((self.num_hosts, *digits.shape), np.float32)
        rows[self.host_index] = digits

        try:
            rows = self._sum_over_replicas(tf.constant(rows)).numpy().astype("int64")
        except tf.errors.OpError as error:
            reason = error.message.split("\n")[0][:200]
            raise ValueError(f"Another host has ended; its log says why. Received: {reason}") from error
        rows = rows * self.num_hosts // self.num_devices
        return [tuple(int(high) * 2**16 + int(low) for high, low in row) for row in rows]

    def diagnose(self, step):
        host = {"num_hosts": self.num_hosts, "host_index": self.host_index}
        batch = next(iter(self._inputs.train_batches(step, **host)))
        pieces = self.num_devices * self._config.accumulate_steps
        compute_gradients = make_compute_gradients(self.model, self._task)
        return first_nonfinite_layer(self.model, compute_gradients, batch, pieces)


def make_replica_sums(model, compute):
    """The function that a replica runs to evaluate its part of a batch.

    Args:
        model: a `keras.Model`.
        compute: as of `Engine.evaluate`.

    Returns:
        `replica_sums(*batch)`: the weighted sums of what `compute` gives by name, and the sum of the example weights.
    """

    @tf.autograph.experimental.do_not_convert
    def replica_sums(*batch):
        weights = batch[-1]
        values = compute(model, batch)
        return {name: tf.reduce_sum(v * weights) for name, v in values.items()}, tf.reduce_sum(weights)

    return replica_sums


def _peak_memory():
    if tf.config.list_logical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return process_peak_memory()


@contextlib.contextmanager
def _profile(folder):
    if folder is None:
        yield
        return
    tf.profiler.experimental.start(str(folder))
    try:
        yield
    finally:
        tf.profiler.experimental.stop()


@contextlib.contextmanager
def _explained_errors():
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        reason = error.message.split("\n")[0][:200]
        raise ValueError(f"{OUT_OF_MEMORY} Received: {reason}") from error
    except tf.errors.NotFoundError as error:
        if "transfer manager" not in error.message:
            raise
        raise ValueError(
            "This TensorFlow has no XLA for its device: `xla` must be False. Received: xla=True"
        ) from error
