"""Compiles the steps of the TensorFlow engine for one TPUStrategy replica."""

import math
import warnings

import tensorflow as tf

from keras_vit.layers.compilation import compiling_for
from keras_vit.tpu import compiler
from keras_vit.tpu.program import Programs, refused_program
from keras_vit.training.tensorflow.engine import (
    TensorFlowEngine,
    check_tpu_config,
    make_replica_sums,
)
from keras_vit.training.tensorflow.step import make_replica_step

# Prefix of TensorFlow's error message if it cannot lower a graph.
_NO_PROGRAM = "Failed getting HLO text: "


class TensorFlowPrograms(Programs):
    """Compiles the functions that `strategy.run` calls on a replica, for one device and without the
    all-reduce."""

    def _build(self, inputs, total_steps):
        check_tpu_config(self._config)
        self._engine = TensorFlowEngine(tf.distribute.get_strategy())
        self._engine.build(self._config, self._task, inputs, total_steps)
        return self._engine.model

    def train(self, batch_size, accumulate_steps):
        size = batch_size // self.topology.num_devices
        task = self._task.variants[0]  # the one that needs the most memory
        config = self._config_of(size, accumulate_steps)
        step = make_replica_step(self._engine.strategy, self._engine.state, task, config)
        scalars = [tf.TensorSpec((), dtype) for dtype in (tf.int32, tf.int32, tf.float32)]
        return compile_function(step, [*scalars, *self._batch(size)], self.topology.name)

    def evaluation(self, batch_size, accumulate_steps):
        replica_sums = make_replica_sums(self._engine.strategy, self.model, self._task.evaluate)
        size = batch_size // self.topology.num_devices // accumulate_steps
        return compile_function(replica_sums, self._batch(size), self.topology.name)

    @property
    def state_bytes(self):
        state = self._engine.state
        variables = [*state.model.variables, *state.optimizer.variables, *state.variables.averages]
        return self.frozen_bytes + sum(
            math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables
        )

    def _batch(self, size):
        return [tf.TensorSpec((size, *shape), dtype) for shape, dtype in self._batch_specs]


def compile_function(function, specs, topology):
    """Compiles a function for `tf.TensorSpec` arguments and one device of a slice; returns its
    `Program`."""
    function = tf.function(function, jit_compile=True, autograph=False)
    try:
        with warnings.catch_warnings(), compiling_for("tpu"):
            # TensorFlow warns about arguments that it passes itself.
            warnings.simplefilter("ignore")
            program = function.experimental_get_compiler_ir(*specs)(stage="stablehlo_serialized")
    except ValueError as error:
        # Handle only dynamic shapes and ops that XLA lacks. Other errors come from the function
        # itself.
        if not str(error).startswith(("Only support static input shape", _NO_PROGRAM)):
            raise
        return refused_program(str(error).removeprefix(_NO_PROGRAM).strip(" '"))
    return compiler.compile_stablehlo(program, topology)
