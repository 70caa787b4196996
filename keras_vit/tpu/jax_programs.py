"""Compiles the steps of the JAX engine for a TPU slice."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from keras_vit.tpu import compiler
from keras_vit.tpu.program import Programs, refused_program
from keras_vit.training.jax import frozen
from keras_vit.training.jax.devices import AXIS
from keras_vit.training.jax.engine import JaxEngine, steps_per_execution


class JaxPrograms(Programs):
    """Compiles the steps of a run on JAX for all devices of a slice; a training program may run
    several steps."""

    def _build(self, inputs, total_steps):
        devices = compiler.topology_devices(self.topology.name, self.topology.device.chip_config)
        self._engine = _ShapesEngine(Mesh(np.array(devices), (AXIS,)))
        self._engine.build(self._config, self._task, inputs, total_steps)
        return self._engine.model

    def train(self, batch_size, accumulate_steps):
        train_steps, _ = self._engine.functions(self._config_of(batch_size, accumulate_steps))
        num_devices = self.topology.num_devices
        steps = steps_per_execution(
            self._config.steps_per_call, batch_size, self._image_shape, num_devices
        )
        scalars = [self._array((), dtype) for dtype in (bool, jnp.int32, jnp.int32)]
        batches = [self._batch(batch_size)] * steps
        stop_requested = self._array((num_devices,), jnp.float32, AXIS)
        arguments = (self._engine.state, *scalars, batches, stop_requested)
        return compile_function(train_steps, *arguments, steps=steps)

    def evaluation(self, batch_size, accumulate_steps):
        _, sums = self._engine.functions(self._config_of(batch_size, accumulate_steps))
        state = self._engine.state
        arguments = (state.weights, state.statistics, self._batch(batch_size))
        return compile_function(frozen.jit(sums, self._task.frozen_models), *arguments)

    @property
    def state_bytes(self):
        return self.frozen_bytes + sum(
            math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
            for array in jax.tree.leaves(self._engine.state)
        )

    def _batch(self, size):
        return tuple(self._array((size, *shape), dtype, AXIS) for shape, dtype in self._batch_specs)

    def _array(self, shape, dtype, *axes):
        sharding = NamedSharding(self._engine.mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


class _ShapesEngine(JaxEngine):
    """An engine for devices of another machine. Its state has shapes instead of arrays."""

    def _place_arrays(self, state):
        self.state = jax.tree.map(
            lambda array, sharding: jax.ShapeDtypeStruct(
                np.shape(array), array.dtype, sharding=sharding
            ),
            state,
            self._shardings,
        )

    def functions(self, config):
        """Returns `train_steps`, of the variant that needs the most memory, and `sums` for a config
        with other batches."""
        self._config = config
        return self._make_train_steps(self._task.variants[0]), self._make_sums(self._task.evaluate)


def compile_function(function, *arguments, steps=1):
    """Compiles a jitted function for sharded `jax.ShapeDtypeStruct` arguments and returns its
    `Program`."""
    try:
        lowered = function.lower(*arguments)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, NotImplementedError) as error:
        return refused_program(error)  # for example, a shape that depends on values
    was_enabled = jax.config.jax_enable_compilation_cache
    # JAX cannot load these programs from the cache.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        return compiler.program_of(lambda options: lowered.compile(compiler_options=options), steps)
    finally:
        jax.config.update("jax_enable_compilation_cache", was_enabled)
