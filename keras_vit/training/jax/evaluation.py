"""What is computed without dropout: the sums of an evaluation, and the gradients of a diagnosis."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from keras_vit.training.jax.gradients import micro_batches
from keras_vit.training.jax.variables import keep_in_loop, model_scope


def make_sums(mesh, model, compute, weight_shardings, parts=1):
    """The compiled function that evaluates a batch."""
    names = []  # in the order of `compute`; what is compiled gives dicts sorted by key

    def part_sums(weights, statistics, batch):
        with model_scope(model, weights, statistics, weight_shardings):
            values = compute(model, batch)
        names[:] = values
        return [jnp.sum(value * batch[-1]) for value in values.values()], jnp.sum(batch[-1])

    def batch_sums(weights, statistics, batch):
        if parts == 1:
            return part_sums(weights, statistics, batch)

        def sums_of_part(part):
            values, part = keep_in_loop(weights, part, weight_shardings)
            return part_sums(values, statistics, part)

        return jax.tree.map(jnp.sum, jax.lax.map(sums_of_part, micro_batches(mesh, batch, parts)))

    compiled = jax.jit(batch_sums, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def sums(weights, statistics, batch):
        values, weight = compiled(weights, statistics, batch)
        return dict(zip(names, values)), weight

    return sums


def make_sum_gradients(model, task):
    """The function that `diagnosis.first_nonfinite_layer` asks for the gradients of a part of a batch."""

    @jax.jit
    def gradients(weights, statistics, piece):
        def total(weights):
            with model_scope(model, weights, statistics):
                losses, _ = task.losses_and_metrics(model, piece, training=False)
            return jnp.sum(losses)

        return jax.value_and_grad(total)(weights)

    def compute_gradients(piece):
        values = [
            [v.value for v in variables] for variables in (model.trainable_variables, model.non_trainable_variables)
        ]
        return gradients(*values, piece)

    return compute_gradients
