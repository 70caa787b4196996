"""The variables that training changes."""

import numpy as np
import tensorflow as tf

from keras_vit.training.update import INITIAL_LOSS_SCALE, TrainState


class State:
    """Model, optimizer (built) and, if wanted, averages and a loss scale; created in the scope of the strategy."""

    def __init__(self, model, optimizer, averaged=False, scaled=False):
        self.model = model
        self.optimizer = optimizer
        self.running = _variable(True)
        # Replicas of a TPU would exchange Keras' own counter at each assignment, because of its aggregation. The name
        # is private to Keras; `tests/tpu/one_program_test.py` fails if it changes.
        optimizer.iterations._value = _variable(optimizer.iterations.numpy())
        self.variables = TrainState(
            weights=[variable.value for variable in model.trainable_variables],
            statistics=[variable.value for variable in model.non_trainable_variables],
            slots=[variable.value for variable in optimizer.variables],
            averages=[_variable(variable.numpy()) for variable in model.trainable_variables] if averaged else [],
            scaling=[_variable(np.float32(INITIAL_LOSS_SCALE)), _variable(np.int64(0))] if scaled else [],
        )


def make_swap_ema(strategy, state):
    """The function that exchanges weights and averages on the devices; without averages it does nothing."""

    @tf.autograph.experimental.do_not_convert
    def replica_swap():
        for average, weight in zip(state.variables.averages, state.variables.weights):
            old = tf.identity(weight)
            weight.assign(average)
            average.assign(old)

    if not state.variables.averages:
        return lambda: None
    return tf.function(lambda: strategy.run(replica_swap), autograph=False)


def _variable(value):
    # Every replica computes the same new value for its own copy. Any other aggregation would send the values around.
    return tf.Variable(value, trainable=False, aggregation=tf.VariableAggregation.NONE)
