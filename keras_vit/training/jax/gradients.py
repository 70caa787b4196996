"""Computes the gradients of a step, summed over its micro-batches."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from keras_vit.layers.compilation import compiling_for
from keras_vit.layers.dropout import StepSeeds, seed_scope
from keras_vit.training.jax.devices import AXIS, platform_of
from keras_vit.training.jax.variables import keep_in_loop, model_scope


def make_compute_gradients(mesh, model, task, weight_shardings, gradient_shardings, config):
    """Returns `compute_gradients(weights, statistics, step, batch, loss_scale=None)`.

    The returned function computes gradients, means of the loss and the metrics, and new statistics
    for the global batch. Statistics are the non-trainable weights. If `loss_scale` is given, the
    gradients are multiplied by it.
    """
    accumulate_steps = config.accumulate_steps
    micro_batch_loss = make_micro_batch_loss(
        mesh, model, task, gradient_shardings, config.batch_size
    )
    micro_batch_gradients = jax.grad(micro_batch_loss, has_aux=True)

    def compute_gradients(weights, statistics, step, batch, loss_scale=None):
        key = jax.random.fold_in(jax.random.PRNGKey(config.seed), step)
        if accumulate_steps == 1:
            gradients, (means, statistics) = micro_batch_gradients(
                weights, statistics, batch, jax.random.fold_in(key, 0), loss_scale
            )
            return gradients, means, statistics

        # Sum the gradients over micro-batches in a loop.
        def add(carry, index_and_part):
            gradients, means, statistics = carry
            index, part = index_and_part
            values = weights
            if config.remat:
                values, part = keep_in_loop(weights, part, weight_shardings)
            more, (more_means, statistics) = micro_batch_gradients(
                values, statistics, part, jax.random.fold_in(key, index), loss_scale
            )
            return ([a + b for a, b in zip(gradients, more)], means + more_means, statistics), None

        zeros = [jnp.zeros_like(weight) for weight in weights]
        parts = micro_batches(mesh, batch, accumulate_steps)
        start = (zeros, jnp.zeros(1 + len(task.metrics)), statistics)
        sums, _ = jax.lax.scan(add, start, (jnp.arange(accumulate_steps), parts))
        return sums

    return compute_gradients


def make_micro_batch_loss(mesh, model, task, gradient_shardings, batch_size):
    """Returns `micro_batch_loss(weights, statistics, batch, key, loss_scale)`.

    The returned function returns `(loss, (means, new statistics))` of a micro-batch. Only `loss`
    is multiplied by `loss_scale`, not the loss in `means`.
    """

    def mean(values, coefficients):
        # Divide by the size of the whole batch, so that the sum over micro-batches is the mean over
        # the batch.
        return jnp.sum(values * coefficients) / batch_size

    def micro_batch_loss(weights, statistics, batch, key, loss_scale):
        example_weights = batch[-1]
        # Class weights apply to the loss, not to the metrics.
        counted = (example_weights > 0).astype("float32")
        with (
            model_scope(model, weights, statistics, gradient_shardings) as scope,
            seed_scope(StepSeeds(key)),
            compiling_for(platform_of(mesh)),
        ):
            losses, metrics = task.losses_and_metrics(model, batch, training=True)
        loss = mean(losses, example_weights)
        means = jnp.stack([loss, *(mean(metrics[name], counted) for name in task.metrics)])
        new_statistics = [
            scope.get_current_value(variable) for variable in model.non_trainable_variables
        ]
        return loss if loss_scale is None else loss * loss_scale, (means, new_statistics)

    return micro_batch_loss


def micro_batches(mesh, batch, count):
    """Reshapes the arrays `(B, ...)` of a batch to `(count, B / count, ...)`.

    Micro-batch i contains the examples i, i + count, i + 2 count, ..., so that every device
    processes an equal part of each micro-batch and every example stays on its device.
    """
    sharding = NamedSharding(mesh, PartitionSpec(None, AXIS))

    def divide(part):
        part = part.reshape(-1, count, *part.shape[1:]).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(part, sharding)

    return tuple(divide(part) for part in batch)
