"""Compiles the function that runs several training steps."""

import dataclasses

import tensorflow as tf

from keras_vit.models.freezing import frozen_weights
from keras_vit.training.tensorflow.gradients import (
    make_replica_gradients,
    platform_of,
    with_xla,
)
from keras_vit.training.update import TrainState, update


def make_replica_step(strategy, state, task, config):
    """Returns the function that runs a whole step on one replica without returning to the host."""
    replica_gradients = make_replica_gradients(strategy, state.model, task, config)
    statistics = _updated_statistics(state)
    variables = dataclasses.replace(state.variables, statistics=statistics)
    # On TPUs, XLA compiles the whole step.
    compiled = {} if platform_of(strategy) == "tpu" else {"compiled": with_xla}

    @tf.autograph.experimental.do_not_convert
    def replica_step(step, first, stop_requested, *batch):
        running = state.running | (step == first)
        before = TrainState(
            **{name: list(map(tf.identity, values)) for name, values in vars(variables).items()}
        )

        # Run the forward and backward passes, and sum gradients and metrics over replicas.
        gradients, means = replica_gradients(
            step, batch, before.scaling[0] if before.scaling else None
        )
        *gradients, means = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, [*gradients, tf.concat([means, [stop_requested]], 0)]
        )
        means, stop_requested = means[:-1], means[-1]

        # Compute the update and assign the new values.
        after, running, metrics = update(
            state.optimizer,
            before,
            gradients,
            means,
            list(map(tf.identity, statistics)),
            running,
            where=where,
            clip_norm=config.clip_norm,
            ema_decay=config.ema_decay,
            skip_nonfinite=config.skip_nonfinite,
            **compiled,
        )
        _assign_changes(variables, before, after)
        state.running.assign(running)
        return metrics, running, stop_requested

    return replica_step


def _updated_statistics(state):
    """Returns the float statistics, which layers update in the forward pass.

    The other non-trainable variables are frozen weights and states of unused seed generators.
    """
    frozen = {id(weight.value) for weight in frozen_weights(state.model)}
    return [
        variable
        for variable in state.variables.statistics
        if variable.dtype.is_floating and id(variable) not in frozen
    ]


def _assign_changes(variables, before, after):
    """Assigns the new values that differ from the old ones; all arguments are `TrainState`s."""
    for lists in zip(*(vars(state).values() for state in (variables, before, after))):
        for variable, old, new in zip(*lists):
            if new is not old:
                variable.assign(new)


def where(condition, new, old):
    """Works like `tf.where` for a scalar condition, but does not copy the selected tensor on a
    CPU."""
    return tf.raw_ops.Select(condition=condition, x=new, y=old)


def make_train_steps(strategy, state, task, config):
    """Returns the compiled function that runs several steps."""
    replica_step = make_replica_step(strategy, state, task, config)

    @tf.function
    def train_steps(iterator, first, steps, stop_requested):
        outputs = [tf.TensorArray(dtype, size=steps) for dtype in (tf.float32, tf.bool, tf.float32)]
        input_wait = tf.constant(0.0, tf.float64)
        for i in tf.range(steps):
            # Measure the wait for the batch, but not for the previous step, which a device may
            # still be computing.
            start = tf.timestamp()
            with tf.control_dependencies([start]):
                batch = next(iterator)
            parts = strategy.experimental_local_results(batch[-1])
            with tf.control_dependencies([tf.identity(part) for part in parts]):
                input_wait += tf.timestamp() - start
            row = strategy.run(replica_step, args=(first + i, first, stop_requested, *batch))
            row = [strategy.experimental_local_results(value)[0] for value in row]
            outputs = [array.write(i, value) for array, value in zip(outputs, row)]
        metrics, running, stops = (array.stack() for array in outputs)
        return {
            "metrics": metrics,
            "running": running,
            "input_wait": input_wait,
            "stop_requested": tf.reduce_any(stops > 0),
        }

    return train_steps
