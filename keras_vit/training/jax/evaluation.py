"""The sums of an evaluation."""

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
