"""Computes the gradients of a step on one replica, summed over its micro-batches."""

import functools

import tensorflow as tf

from keras_vit.layers.compilation import compiling_for
from keras_vit.layers.dropout import StepSeeds, seed_scope
from keras_vit.training.tensorflow.gathering import replica_scope

_fold_in = tf.random.experimental.stateless_fold_in


def make_replica_gradients(strategy, model, task, config):
    """Returns `replica_gradients(step, batch, loss_scale=None)`.

    That function returns `(gradients, metrics)` of one replica, divided by the global batch size.
    Summed over replicas, they are the means over the batch. Gradients are multiplied by
    `loss_scale` if given. The first metric is the loss.
    """
    accumulate_steps = config.accumulate_steps
    variables = [variable.value for variable in model.trainable_variables]
    replica_size = config.batch_size // strategy.num_replicas_in_sync
    micro_batch_gradients = make_micro_batch_gradients(
        strategy, model, task, variables, config.batch_size
    )
    if config.xla:
        micro_batch_gradients = with_xla(micro_batch_gradients)

    @tf.autograph.experimental.do_not_convert
    def replica_gradients(step, batch, loss_scale=None):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        # Restore the static batch size, which multi-worker iterators drop.
        batch = [tf.ensure_shape(part, (replica_size, *part.shape[1:])) for part in batch]
        key = _fold_in(tf.stack([tf.constant(config.seed, tf.int32), step]), replica)
        if accumulate_steps == 1:
            return micro_batch_gradients(batch, _key_of(key, 0), loss_scale)

        # Sum the gradients over micro-batches in a loop.
        parts = [tf.reshape(part, (accumulate_steps, -1, *part.shape[1:])) for part in batch]

        def add(i, gradients, means):
            more, more_means = micro_batch_gradients(
                [part[i] for part in parts], _key_of(key, i), loss_scale
            )
            return i + 1, [a + b for a, b in zip(gradients, more)], means + more_means

        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        start = (0, zeros, tf.zeros(1 + len(task.metrics)))
        _, gradients, means = tf.while_loop(
            lambda i, *_: i < accumulate_steps, add, start, parallel_iterations=1
        )
        return gradients, means

    return replica_gradients


def make_micro_batch_gradients(strategy, model, task, variables, batch_size):
    """Returns `micro_batch_gradients(batch, key, loss_scale)`; see `make_replica_gradients`."""
    platform = platform_of(strategy)

    def mean(values, coefficients):
        # Divide by the global batch size, so that the sum over micro-batches and replicas is the
        # mean.
        return tf.reduce_sum(values * coefficients) / batch_size

    @tf.autograph.experimental.do_not_convert
    def micro_batch_gradients(batch, key, loss_scale):
        example_weights = batch[-1]
        # Class weights apply to the loss, not to the metrics.
        counted = tf.cast(example_weights > 0, tf.float32)
        with tf.GradientTape() as tape:
            with (
                seed_scope(StepSeeds(key)),
                replica_scope(),
                compiling_for(platform, fuse=None if platform == "tpu" else _fused),
            ):
                losses, metrics = task.losses_and_metrics(model, batch, training=True)
            loss = mean(losses, example_weights)
            scaled = loss if loss_scale is None else loss * loss_scale
        gradients = tape.gradient(
            scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        means = [mean(metrics[name], counted) for name in task.metrics]
        return gradients, tf.stack([loss, *means])

    return micro_batch_gradients


def with_xla(function):
    """Returns the function compiled with XLA."""
    return tf.function(function, jit_compile=True, autograph=False)


_fused = functools.cache(with_xla)  # compiles a function of layers once for all blocks


def _key_of(key, micro_batch):
    """Returns the key of a micro-batch, given the key of the replica's step."""
    # Fold in twice, so that micro-batches share no seeds. `_fold_in(key, i)` returns (hash of the
    # key, i), and every draw increments the second number. After a single fold, micro-batches i and
    # i + 1 would share most seeds.
    return _fold_in(_fold_in(key, micro_batch), 0)


def platform_of(strategy):
    """Returns "tpu" on TPUs, otherwise None."""
    return "tpu" if isinstance(strategy, tf.distribute.TPUStrategy) else None
