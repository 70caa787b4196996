"""The JAX engine."""

import collections
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from keras_vit import terminal
from keras_vit.training import memory, state_files
from keras_vit.training.engine import Engine
from keras_vit.training.jax import frozen
from keras_vit.training.jax.batches import DeviceBatches, put_batch
from keras_vit.training.jax.state import initial_state, put, state_shardings
from keras_vit.training.jax.step import make_sums, make_swap_ema, make_train_steps

# Maximum bytes per device for the batches of an execution of several steps.
_EXECUTION_BYTES = 2**26
# Descriptions of the values of `config.shard`, for logs.
_LAYOUTS = {
    "": "weights and optimizer replicated",
    "optimizer": "optimizer sharded",
    "parameters": "weights and optimizer sharded",
}


class JaxEngine(Engine):
    """Trains on a mesh of devices, with batches sharded over all of them; `Engine` documents the
    methods.

    An execution is one call of a compiled function that runs one or more steps. `train` dispatches
    the executions.

    Attributes:
        mesh: the `jax.sharding.Mesh`, as returned by `choose_mesh`.
        state: the `TrainState`; `build` sets it. It includes the values of the model's and the
            optimizer's variables.
    """

    _trace = staticmethod(jax.profiler.trace)

    def __init__(self, mesh):
        self.mesh = mesh
        self.num_devices = mesh.size
        self.num_hosts = len({device.process_index for device in mesh.devices.flat})
        self.host_index = jax.process_index() if self.num_hosts > 1 else 0

    @property
    def description(self):
        hosts = f" of {self.num_hosts} hosts" if self.num_hosts > 1 else ""
        layout = f", {_LAYOUTS[self._config.shard]}" if self.num_devices > 1 else ""
        return f"JAX on {self.num_devices} x {self.mesh.devices.flat[0].device_kind}{hosts}{layout}"

    def _building(self):
        # Create the weights in host memory, because the unsharded weights may not fit on one
        # device.
        return jax.default_device(_host_device())

    def _place(self, optimizer, averaged, scaled):
        config = self._config
        self._optimizer = optimizer
        self._batches = None  # the engine may have trained before, on other data
        state = initial_state(self.model, optimizer, averaged, scaled)
        self._shardings = state_shardings(self.mesh, state, config.shard)
        self._place_arrays(state)
        self._swap_ema = make_swap_ema(self._shardings)
        self._steps_per_execution = steps_per_execution(
            config.steps_per_call, config.batch_size, self._inputs.image_shape, self.num_devices
        )

    def _place_arrays(self, state):
        """Places a state and the weights of models that are not trained on the devices."""
        self._set_state(put(state, self._shardings))
        frozen.place(self.mesh, self._task.frozen_models, self._config.shard)

    def _make_train_steps(self, task):
        return make_train_steps(
            self.mesh,
            self.model,
            self._optimizer,
            task,
            self._shardings,
            self._config,
            self._task.frozen_models,
        )

    def _set_state(self, state):
        """Sets the state and assigns its arrays to the variables of the model and the optimizer."""
        self.state = state
        for variable, array in self._model_arrays():
            variable.assign(array)
        for variable, array in zip(self._optimizer.variables, state.slots):
            variable.assign(array)

    def _model_arrays(self):
        """Returns the pairs of the model's variables and the arrays of the state."""
        variables = [*self.model.trainable_variables, *self.model.non_trainable_variables]
        return zip(variables, [*self.state.weights, *self.state.statistics])

    def train(self, first, steps, *, stop_requested=False, profile_folder=None):
        # Start reading batches, and share the stop request with the other hosts.
        if self._batches is None:
            dataset = self._inputs.train_batches(
                first, num_hosts=self.num_hosts, host_index=self.host_index
            )
            self._batches = DeviceBatches(self.mesh, dataset, ahead=self._steps_per_execution + 1)
        local_devices = self.num_devices // self.num_hosts
        (stop,) = put_batch(self.mesh, [np.full(local_devices, stop_requested, np.float32)])
        outputs = []
        input_wait = 0.0
        state = self.state
        running = np.bool_(True)
        train_steps = self._train_steps(first)
        # Dispatch executions of `steps_per_execution` steps.
        with memory.explained_errors(), self._profiled(profile_folder):
            for done in range(0, steps, self._steps_per_execution):
                count = min(self._steps_per_execution, steps - done)
                batches, wait = self._next_batches(count, outputs[-1:])
                input_wait += wait
                # Pad the batches, because shapes are static.
                batches += batches[-1:] * (self._steps_per_execution - count)
                state, running, output = train_steps(
                    state, running, first + done, count, batches, stop
                )
                if len(outputs) > 1:
                    # Two executions in flight keep the devices busy.
                    jax.block_until_ready(outputs[-2])
                outputs.append({**output, "count": count})
            outputs = jax.device_get(outputs)
        self._set_state(state)
        metrics, flags = (
            np.concatenate([output[name][: output["count"]] for output in outputs])
            for name in ("metrics", "running")
        )
        stop_requested = outputs[0]["stop_requested"] > 0
        return self._outputs(metrics, flags, input_wait, stop_requested)

    def _next_batches(self, count, in_flight):
        """Returns the next batches and the seconds that the devices waited for them.

        `in_flight` contains the outputs of the last execution, if there is one.
        """
        batches = []
        waited = 0.0
        for _ in range(count):
            if not self._batches.ready():
                jax.block_until_ready(in_flight)
            start = time.perf_counter()
            batches.append(next(self._batches))
            waited += time.perf_counter() - start
        return batches, waited

    def _make_sums(self, compute):
        # Micro-batches that fit in memory in training also fit here.
        return make_sums(
            self.mesh,
            self.model,
            compute,
            self._shardings.weights,
            self._config.accumulate_steps,
            self._task.frozen_models,
        )

    def _batch_sums(self, sums):
        inputs = self._inputs
        pending = collections.deque()
        batches = inputs.eval_batches(self.num_hosts, self.host_index).as_numpy_iterator()
        numbers = range(math.ceil(inputs.test.num_examples / inputs.batch_size))
        numbers = terminal.track(numbers, "evaluating", "batches")
        for _, batch in zip(numbers, batches, strict=True):
            batch = put_batch(self.mesh, batch)
            pending.append(sums(self.state.weights, self.state.statistics, batch))
            if len(pending) > 2:
                yield pending.popleft()
        yield from pending

    def swap_ema(self):
        self._set_state(self._swap_ema(self.state))

    def _pieces(self):
        """Yields the `(name, start, array)` pieces of the state that this host writes."""
        for name, array in self._named_arrays():
            for shard in array.addressable_shards:
                if shard.replica_id != 0:
                    continue  # write only one of the replicas
                start = None
                if shard.data.shape != array.shape:
                    start = tuple(s.indices(n)[0] for s, n in zip(shard.index, array.shape))
                yield name, start, np.asarray(shard.data)

    def save(self, path):
        self.gather_hosts([0])  # wait until process 0 has created the folder
        failure = None
        try:
            state_files.write_state(path, self._pieces(), self.host_index, self.num_hosts)
        except (OSError, ValueError) as error:
            failure = error
        # If any host fails, raise an error on every host.
        failures = self.gather_hosts([int(failure is not None)])
        if (1,) in failures:
            raise failure or OSError(
                f"host {failures.index((1,))} could not write its part of the checkpoint"
            )

    def gather_model(self):
        # Copy the arrays, because callers may donate them, as `keras.Model.predict` does.
        for variable, array in self._model_arrays():
            if self.num_hosts > 1 and not array.is_fully_replicated:
                array = multihost_utils.process_allgather(array, tiled=True)
            variable.assign(np.asarray(array) if self.num_hosts > 1 else jnp.copy(array))
        return self.model

    def restore(self, path):
        with state_files.StateReader(path) as reader:

            def read(name, array):
                if not reader.check(name, array.shape):
                    return array

                def part(index):
                    return np.asarray(reader.read(name, array.shape, index), array.dtype)

                return jax.make_array_from_callback(array.shape, array.sharding, part)

            arrays = [read(name, array) for name, array in self._named_arrays()]
        self._set_state(jax.tree.unflatten(jax.tree.structure(self.state), arrays))

    def gather_hosts(self, values):
        if self.num_hosts == 1:
            return super().gather_hosts(values)
        rows = multihost_utils.process_allgather(np.array(values, np.uint32))
        return [tuple(map(int, row)) for row in rows]

    def _named_arrays(self):
        return state_files.named_arrays(self.model, self._optimizer, self.state)

    def _peak_memory(self):
        statistics = self.mesh.local_devices[0].memory_stats() or {}
        return statistics.get("peak_bytes_in_use") or super()._peak_memory()


def steps_per_execution(steps_per_call, batch_size, image_shape, num_devices):
    """Returns the steps per execution: `steps_per_call`, or fewer if the batches would exceed 64
    MiB per device."""
    bytes_per_device = 4 * np.prod([batch_size, *image_shape]) / num_devices
    return max(1, min(steps_per_call, int(_EXECUTION_BYTES / bytes_per_device)))


def _host_device():
    """Returns the CPU device, or None (JAX's default device) if JAX_PLATFORMS excludes the CPU."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None
