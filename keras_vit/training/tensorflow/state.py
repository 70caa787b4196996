"""The variables that training updates."""

import numpy as np
import tensorflow as tf

from keras_vit.training.update import INITIAL_LOSS_SCALE, TrainState


class State:
    """The model, its built optimizer and, optionally, EMA and loss scale; must be created in the
    strategy's scope."""

    def __init__(self, model, optimizer, averaged=False, scaled=False):
        self.model = model
        self.optimizer = optimizer
        self.running = _variable(True)
        # Replace Keras' step counter. Its aggregation would make TPU replicas exchange the counter
        # at each assignment. `_value` is private to Keras; `tests/tpu/one_program_test.py` fails if
        # Keras changes it.
        optimizer.iterations._value = _variable(optimizer.iterations.numpy())
        weights = [variable.value for variable in model.trainable_variables]
        scaling = [np.float32(INITIAL_LOSS_SCALE), np.int64(0)]
        self.variables = TrainState(
            weights=weights,
            statistics=[variable.value for variable in model.non_trainable_variables],
            slots=[variable.value for variable in optimizer.variables],
            averages=[_variable(weight.numpy()) for weight in weights if averaged],
            scaling=[_variable(value) for value in scaling if scaled],
        )


def make_swap_ema(strategy, state):
    """Returns the function that swaps weights and EMA on the devices; it does nothing without an
    EMA."""

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
    # Every replica computes the same new value. Any other aggregation would exchange values between
    # replicas.
    return tf.Variable(value, trainable=False, aggregation=tf.VariableAggregation.NONE)
