"""The variables that training changes: all that an engine's checkpoint holds."""

import numpy as np
import tensorflow as tf

from keras_vit.training.loss_scaling import INITIAL_LOSS_SCALE
from keras_vit.training.state_files import StateReader, state_names


class State:
    """Model, optimizer and averages; to be created in the scope of the strategy.

    Args:
        model: a built `keras.Model`.
        optimizer: a Keras optimizer, built on the model's trainable variables.
        averaged: whether averages of the weights are kept.
        scaled: whether the loss is scaled, as float16 needs.

    Attributes:
        model, optimizer: the arguments.
        averages: a variable for each trainable one, which starts as a copy; none if not `averaged`.
        loss_scale: what the loss is multiplied with, or None.
        good_steps: finite steps since the scale was changed, or None.
        running: whether the steps of the current call still change anything; not in the checkpoint.
        checkpoint: the `tf.train.Checkpoint` of all others.
    """

    def __init__(self, model, optimizer, averaged=False, scaled=False):
        self.model = model
        self.optimizer = optimizer
        self.averages = [_variable(v.numpy()) for v in model.trainable_variables] if averaged else []
        self.loss_scale = _variable(np.float32(INITIAL_LOSS_SCALE)) if scaled else None
        self.good_steps = _variable(np.int64(0)) if scaled else None
        self.running = _variable(True)
        # The aggregation of Keras' own counter would exchange it among the replicas of a TPU at each assignment. The
        # name is private to Keras; `tests/tpu/one_program_test.py` fails if it changes.
        optimizer.iterations._value = _variable(optimizer.iterations.numpy())
        self._unscaled = {"model": model, "optimizer": optimizer, "averages": self.averages}
        scaling = {"loss_scale": self.loss_scale, "good_steps": self.good_steps} if scaled else {}
        self.checkpoint = tf.train.Checkpoint(**self._unscaled, **scaling)

    def restore(self, path):
        """Reads a checkpoint; of a run whose loss was not scaled, the scale starts anew."""
        checkpoint = self.checkpoint
        if self.loss_scale is not None:
            reader = tf.compat.v1.train.NewCheckpointReader(path)
            if not any(name.startswith("loss_scale/") for name in reader.get_variable_to_shape_map()):
                checkpoint = tf.train.Checkpoint(**self._unscaled)
        checkpoint.read(path).assert_existing_objects_matched()

    def all_finite(self):
        """Whether every weight is finite."""
        weights = [v.value for v in self.model.weights if v.value.dtype.is_floating]
        return all(bool(tf.reduce_all(tf.math.is_finite(weight))) for weight in weights)


def read_state_files(state, path):
    """Gives a `State` the numbers that the engine of another backend wrote, as `state_files` describes them.

    Where the loss was not scaled, its scale starts anew.

    Raises:
        CorruptCheckpointError: the files are damaged.
        ValueError: they are those of another model.
        OSError: they cannot be read now; a `FileNotFoundError` where one is missing.
    """
    model, optimizer = state.model, state.optimizer
    names = state_names(model, optimizer, averaged=bool(state.averages), scaled=state.loss_scale is not None)
    variables = {
        "weights": model.trainable_variables,
        "statistics": model.non_trainable_variables,
        "slots": optimizer.variables,
        "averages": state.averages,
        "scaling": [state.loss_scale, state.good_steps],
    }
    with StateReader(path) as reader:
        pairs = [
            (name, variable)
            for group, group_names in names.items()
            for name, variable in zip(group_names, variables[group])
            if group != "scaling" or reader.has(name)
        ]
        for name, variable in pairs:
            reader.check(name, variable.shape)
        for name, variable in pairs:
            variable.assign(tf.cast(reader.read(name, variable.shape), variable.dtype))


def make_swap_ema(strategy, state):
    """The function that lets weights and averages trade places on the devices; without averages it does nothing."""

    @tf.autograph.experimental.do_not_convert
    def replica_swap():
        for average, variable in zip(state.averages, state.model.trainable_variables):
            old = tf.identity(variable.value)
            variable.value.assign(average)
            average.assign(old)

    if not state.averages:
        return lambda: None
    return tf.function(lambda: strategy.run(replica_swap), autograph=False)


def _variable(value):
    # Every replica computes the same new value for its own copy. Any other aggregation would send the values around.
    return tf.Variable(value, trainable=False, aggregation=tf.VariableAggregation.NONE)
