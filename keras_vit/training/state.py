"""What a training run remembers: all that its checkpoints hold."""

import contextlib

import numpy as np
import tensorflow as tf

FIRST_SCALE = 2.0**15


class State(tf.train.Checkpoint):
    """Model, optimizer, averages and counters; make it in the scope of the strategy.

    Args:
        model: a built `keras.Model`.
        optimizer: a Keras optimizer, built on the model's trainable variables.
        averaged: whether averages of the weights are kept.
        scaled: whether the loss is scaled, as float16 needs.

    Attributes:
        model, optimizer: as given.
        averages: a variable for each trainable one, which starts as a copy; none if not `averaged`.
        scale: what the loss is multiplied with, or None.
        good_steps: steps since the scale was changed.
        step: steps that are done, which is also the position in the data.
        skipped: steps whose gradient was not finite and which changed nothing.
        seconds: how long training took so far.
        best_step, best_accuracy: of the best evaluation; -1 before the first.
    """

    def __init__(self, model, optimizer, averaged=False, scaled=False):
        super().__init__(
            model=model,
            optimizer=optimizer,
            averages=[_variable(v.numpy()) for v in model.trainable_variables] if averaged else [],
            step=_variable(np.int64(0)),
            skipped=_variable(np.int64(0)),
            seconds=_variable(np.float64(0)),
            best_step=_variable(np.int64(-1)),
            best_accuracy=_variable(np.float64(-1)),
        )
        self.scale = self.good_steps = None
        if scaled:
            self.scale, self.good_steps = _variable(np.float32(FIRST_SCALE)), _variable(np.int64(0))

    def weights_changed(self):
        """Lets the averages start again from the weights."""
        for average, variable in zip(self.averages, self.model.trainable_variables):
            average.assign(variable.value)

    @contextlib.contextmanager
    def averages_in_the_model(self):
        """While it is open, the model has the averages as its weights, if there are any."""
        if not self.averages:
            yield
            return
        variables = self.model.trainable_variables
        weights = [variable.numpy() for variable in variables]
        for variable, average in zip(variables, self.averages):
            variable.assign(average.numpy())
        try:
            yield
        finally:
            for variable, weight in zip(variables, weights):
                variable.assign(weight)

    def average_the_model(self):
        """Gives the model the averages as its weights, for good, if there are any."""
        for average, variable in zip(self.averages, self.model.trainable_variables):
            variable.assign(average.numpy())

    def all_finite(self):
        """Whether every weight is a finite number."""
        return all(bool(tf.reduce_all(tf.math.is_finite(v.value))) for v in self.model.trainable_variables)


def _variable(value):
    # Every replica computes the same new value.
    return tf.Variable(value, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
