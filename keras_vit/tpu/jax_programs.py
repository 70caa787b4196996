"""The programs that the engine on JAX runs, compiled for all devices of a TPU slice."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from keras_vit.tpu import compiler
from keras_vit.training.engine import make_optimizer, make_task_metrics
from keras_vit.training.jax.devices import AXIS
from keras_vit.training.jax.engine import STEP_OPTIONS, steps_per_execution
from keras_vit.training.jax.evaluation import make_sums
from keras_vit.training.jax.state import initial_state, state_shardings
from keras_vit.training.jax.step import make_train_steps


class JaxPrograms:
    """The steps of a run on JAX, compiled for the devices of a slice, which divide every batch.

    What the devices exchange is in the programs. Sizes and counts are of one device.

    Args:
        config: the recipe; its `batch_size` is not used.
        task: the `tasks.Task`.
        inputs: an `InputPipeline`, or `InputShapes`.
        topology: the `Topology`.
        total_steps: of the whole run, for the schedule.

    Raises:
        ValueError: the config cannot be satisfied on the slice.
    """

    def __init__(self, config, task, inputs, topology, total_steps):
        self._config, self._task = config, task
        self._image_shape = inputs.image_shape
        self._batch_shapes = (inputs.image_shape, (len(inputs.train.class_names),), ())
        self._mesh = Mesh(np.array(compiler.topology_devices(topology.name)), (AXIS,))
        self.model = task.build_model(inputs)
        self._optimizer = make_optimizer(config, total_steps)
        self._optimizer.build(self.model.trainable_variables)
        averaged, scaled = config.ema_decay > 0, config.precision == "mixed_float16"
        state = initial_state(self.model, self._optimizer, averaged, scaled)
        self._shardings = state_shardings(self._mesh, state, config.shard)
        self._state = jax.tree.map(
            lambda array, sharding: jax.ShapeDtypeStruct(np.shape(array), array.dtype, sharding=sharding),
            state,
            self._shardings,
        )

    def train(self, batch_size, accumulate_steps):
        """The `Program` of the training steps that are one execution.

        Args:
            batch_size: over all devices of the slice, which divide it.
            accumulate_steps: micro-batches of a batch.
        """
        options = {name: self._config[name] for name in STEP_OPTIONS}
        options |= {"batch_size": batch_size, "accumulate_steps": accumulate_steps}
        train_steps = make_train_steps(self._mesh, self.model, self._optimizer, self._task, self._shardings, **options)
        steps = steps_per_execution(self._config.steps_per_call, batch_size, self._image_shape, self._mesh.size)
        scalar = lambda dtype: self._array((), dtype, PartitionSpec())  # noqa: E731
        arguments = (self._state, scalar(bool), scalar(jnp.int32), scalar(jnp.int32))
        stop_requested = self._array((self._mesh.size,), jnp.float32, PartitionSpec(AXIS))
        return compile_function(train_steps, *arguments, [self._batch(batch_size)] * steps, stop_requested)

    def evaluation(self, batch_size, accumulate_steps):
        """The `Program` of an evaluation step; see `train`."""
        sums = make_sums(self._mesh, self.model, make_task_metrics(self._task), accumulate_steps)
        return compile_function(jax.jit(sums), self._state.weights, self._state.statistics, self._batch(batch_size))

    def _batch(self, size):
        return tuple(self._array((size, *shape), jnp.float32, PartitionSpec(AXIS)) for shape in self._batch_shapes)

    def _array(self, shape, dtype, spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self._mesh, spec))


def compile_function(function, *arguments):
    """The `Program` of a function.

    Args:
        function: of `jax.jit`.
        *arguments: `jax.ShapeDtypeStruct`s with shardings over the devices of `compiler.topology_devices`, or trees of
            them.
    """
    try:
        lowered = function.lower(*arguments)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, NotImplementedError) as error:
        return compiler.refused_program(error)  # such as a shape that depends on values
    host_operations = compiler.find_host_operations(lowered.compiler_ir("stablehlo"))
    try:
        return compiler.compiled_program(lowered.compile(), host_operations)
    except jax.errors.JaxRuntimeError as error:
        return compiler.refused_program(error)
