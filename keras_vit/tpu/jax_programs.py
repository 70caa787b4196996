"""Compiles the steps of the JAX engine for a TPU slice."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from keras_vit.tpu import compiler
from keras_vit.tpu.program import Programs, refused_program
from keras_vit.training import freezing
from keras_vit.training.engine import make_optimizer
from keras_vit.training.jax import frozen
from keras_vit.training.jax.devices import AXIS
from keras_vit.training.jax.engine import steps_per_execution
from keras_vit.training.jax.state import initial_state, state_shardings
from keras_vit.training.jax.step import make_sums, make_train_steps


class JaxPrograms(Programs):
    """Compiles the steps of a run on JAX for all devices of a slice; a training program may run
    several steps."""

    def _build(self, inputs, total_steps):
        config = self._config
        devices = compiler.topology_devices(self.topology.name, self.topology.device.chip_config)
        self._mesh = Mesh(np.array(devices), (AXIS,))
        model = self._task.build_model(inputs)
        freezing.apply(config, model)
        self._optimizer = make_optimizer(config, total_steps)
        self._optimizer.build(model.trainable_variables)
        averaged = config.ema_decay > 0
        scaled = config.precision == "mixed_float16"
        state = initial_state(model, self._optimizer, averaged, scaled)
        self._shardings = state_shardings(self._mesh, state, config.shard)
        self._state = jax.tree.map(
            lambda array, sharding: jax.ShapeDtypeStruct(
                np.shape(array), array.dtype, sharding=sharding
            ),
            state,
            self._shardings,
        )
        return model

    def train(self, batch_size, accumulate_steps):
        task = self._task.variants[0]  # the one that needs the most memory
        config = self._config_of(batch_size, accumulate_steps)
        train_steps = make_train_steps(
            self._mesh,
            self.model,
            self._optimizer,
            task,
            self._shardings,
            config,
            self._task.frozen_models,
        )
        steps = steps_per_execution(
            self._config.steps_per_call, batch_size, self._image_shape, self._mesh.size
        )
        scalars = [
            self._array((), dtype, PartitionSpec()) for dtype in (bool, jnp.int32, jnp.int32)
        ]
        stop_requested = self._array((self._mesh.size,), jnp.float32, PartitionSpec(AXIS))
        batches = [self._batch(batch_size)] * steps
        return compile_function(
            train_steps, self._state, *scalars, batches, stop_requested, steps=steps
        )

    def evaluation(self, batch_size, accumulate_steps):
        frozen_models = self._task.frozen_models
        sums = make_sums(
            self._mesh,
            self.model,
            self._task.evaluate,
            self._shardings.weights,
            accumulate_steps,
            frozen_models,
        )
        arguments = (self._state.weights, self._state.statistics, self._batch(batch_size))
        return compile_function(frozen.jit(sums, frozen_models), *arguments)

    @property
    def state_bytes(self):
        return self.frozen_bytes + sum(
            math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
            for array in jax.tree.leaves(self._state)
        )

    def _batch(self, size):
        return tuple(
            self._array((size, *shape), dtype, PartitionSpec(AXIS))
            for shape, dtype in self._batch_specs
        )

    def _array(self, shape, dtype, spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self._mesh, spec))


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
