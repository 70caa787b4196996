"""One step of training as one program on every replica, and several steps in one call."""

import tensorflow as tf

from keras_vit import optimizers
from keras_vit.training.loss_scaling import update_loss_scale
from keras_vit.training.tensorflow.gradients import make_replica_gradients


def make_replica_step(
    strategy, state, task, *, batch_size, clip_norm=0.0, ema_decay=0.0, skip_nonfinite=False, **options
):
    """The function that a replica runs for a step: the whole step, so that nothing of it leaves the device.

    A step whose loss or gradients are not finite changes no weight. It ends its call, unless `skip_nonfinite` is set or
    only the scale of a float16 loss was too large: `state.running` becomes False, and the steps that the call still
    runs change nothing.

    Args:
        strategy: the strategy in whose scope the state was created.
        state: the `State`.
        task: the `tasks.Task`.
        batch_size: examples in a batch, over all replicas.
        clip_norm: the largest global norm of the gradients; 0 for no clipping.
        ema_decay: of the averages of the weights, in [0, 1); 0 for none.
        skip_nonfinite: whether training goes on after a step that is not finite.
        **options: of `make_replica_gradients`.

    Returns:
        `replica_step(step, first, stop_requested, batch)`, where `first` is the first step of the call: the metrics of
        the step, float32 `(metrics,)` in the order of `step_metrics`; a bool, whether the steps after it change
        anything; and the sum of `stop_requested`, a float32 scalar, over the replicas.
    """
    model, optimizer = state.model, state.optimizer
    replica_gradients = make_replica_gradients(strategy, model, task, batch_size=batch_size, **options)
    # The gradients are summed over replicas before they are clipped, and Keras must not sum them again. This name of
    # Keras' is private: equal weights for any number of replicas are the test of it.
    optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables
    # What layers write in the forward pass, such as the statistics of BatchNormalization.
    statistics = [v.value for v in model.non_trainable_variables if v.value.dtype.is_floating]

    @tf.autograph.experimental.do_not_convert
    def replica_step(step, first, stop_requested, batch):
        running = state.running | (step == first)
        learning_rate = tf.cast(optimizer.learning_rate, tf.float32)
        loss_scale = None if state.loss_scale is None else tf.identity(state.loss_scale)
        statistics_before = [tf.identity(variable) for variable in statistics]

        gradients, means = replica_gradients(step, batch, loss_scale)
        *gradients, means = all_reduce_sum([*gradients, tf.concat([means, [stop_requested]], 0)])
        means, stop_requested = means[:-1], means[-1]
        if loss_scale is not None:
            gradients = [gradient / loss_scale for gradient in gradients]
        gradients, norm = optimizers.clip_by_global_norm(gradients, clip_norm)
        all_finite = tf.reduce_all(tf.math.is_finite(means)) & tf.math.is_finite(norm)
        use = running & all_finite

        with optimizer.only_if(use, where):
            optimizer.apply(gradients, model.trainable_variables)
        for average, variable in zip(state.averages, model.trainable_variables):
            average.assign(where(use, optimizers.ema_update(average, variable, ema_decay), average))

        for variable, before in zip(statistics, statistics_before):
            variable.assign(where(use, variable, before))

        can_go_on = all_finite | skip_nonfinite
        if loss_scale is not None:
            new_scale, good_steps = update_loss_scale(loss_scale, state.good_steps.read_value(), all_finite, running)
            state.loss_scale.assign(new_scale)
            state.good_steps.assign(good_steps)
            can_go_on |= tf.math.is_finite(means[0]) & (new_scale >= 1.0)
        running &= can_go_on
        state.running.assign(running)
        return tf.concat([means, [norm, learning_rate]], 0), running, stop_requested

    return replica_step


def where(condition, new, old):
    """`new` if the scalar `condition` holds, else `old`: `tf.where` without its pass over memory on a CPU, where the
    older operation hands on the buffer of the tensor that it selects."""
    return tf.raw_ops.Select(condition=condition, x=new, y=old)


def all_reduce_sum(tensors):
    """The sums of tensors over all replicas, the same on each."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)


def make_train_steps(strategy, state, task, **options):
    """The function that trains.

    Args:
        strategy, state, task, **options: see `make_replica_step`.

    Returns:
        `train_steps(iterator, first, steps, stop_requested)`: does `steps` steps from number `first` on; returns a
        dict with "metrics", float32 `(steps, metrics)` in the order of `step_metrics`; "running", bool `(steps,)`,
        False from the step on that ended the call; "example_weights", float32 `(steps, examples of this process)`;
        "input_wait", the seconds spent waiting for batches, float64; and "stop_requested", whether `stop_requested`, a
        float32 scalar, was above 0 on any worker.
    """
    replica_step = make_replica_step(strategy, state, task, **options)

    @tf.autograph.experimental.do_not_convert
    def replica_outputs(step, first, stop_requested, *batch):
        return (*replica_step(step, first, stop_requested, batch), batch[-1])

    def unreplicate(value):
        return strategy.experimental_local_results(value)[0]

    def gather_local(value):
        return tf.concat(strategy.experimental_local_results(value), 0)

    @tf.function
    def train_steps(iterator, first, steps, stop_requested):
        outputs = [tf.TensorArray(dtype, size=steps) for dtype in (tf.float32, tf.bool, tf.float32, tf.float32)]
        input_wait = tf.constant(0.0, tf.float64)
        for i in tf.range(steps):
            # The clock waits for the batch and not for the step before, which a device may still be computing.
            start = tf.timestamp()
            with tf.control_dependencies([start]):
                batch = next(iterator)
            with tf.control_dependencies(
                [tf.identity(part) for part in strategy.experimental_local_results(batch[-1])]
            ):
                input_wait += tf.timestamp() - start
            metrics, running, stop, example_weights = strategy.run(
                replica_outputs, args=(first + i, first, stop_requested, *batch)
            )
            row = (unreplicate(metrics), unreplicate(running), unreplicate(stop), gather_local(example_weights))
            outputs = [array.write(i, value) for array, value in zip(outputs, row)]
        metrics, running, stops, example_weights = (array.stack() for array in outputs)
        return {
            "metrics": metrics,
            "running": running,
            "example_weights": example_weights,
            "input_wait": input_wait,
            "stop_requested": tf.reduce_any(stops > 0),
        }

    return train_steps
