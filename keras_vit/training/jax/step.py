"""Compiles the functions that train, swap weights and EMA, and sum the metrics of a batch."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from keras_vit.layers.compilation import compiling_for
from keras_vit.training.jax import frozen
from keras_vit.training.jax.devices import platform_of
from keras_vit.training.jax.gradients import make_compute_gradients, micro_batches
from keras_vit.training.jax.variables import keep_in_loop, model_scope
from keras_vit.training.update import step_metrics, update


def make_step(mesh, model, optimizer, task, shardings, config):
    """Returns `step(state, running, number, batch)`, which returns `(state, running, metrics)`."""
    # Shard the gradients like the momentum, because a device needs only the gradients of the
    # weights that it updates.
    sharding_of = {
        id(variable): sharding for variable, sharding in zip(optimizer.variables, shardings.slots)
    }
    gradient_shardings = [sharding_of[id(momentum)] for momentum in optimizer.momentums]
    compute_gradients = make_compute_gradients(
        mesh, model, task, shardings.weights, gradient_shardings, config
    )

    def step(state, running, number, batch):
        loss_scale = state.scaling[0] if state.scaling else None
        gradients, means, statistics = compute_gradients(
            state.weights, state.statistics, number, batch, loss_scale
        )
        gradients = jax.lax.with_sharding_constraint(gradients, gradient_shardings)
        state, running, metrics = update(
            optimizer,
            state,
            gradients,
            means,
            statistics,
            running,
            clip_norm=config.clip_norm,
            ema_decay=config.ema_decay,
            skip_nonfinite=config.skip_nonfinite,
        )
        return jax.lax.with_sharding_constraint(state, shardings), running, metrics

    return step


def make_train_steps(mesh, model, optimizer, task, shardings, config, frozen_models=()):
    """Returns the compiled function that runs one or more steps; its argument `state` is
    donated."""
    step = make_step(mesh, model, optimizer, task, shardings, config)
    columns = len(step_metrics(task))

    def train_steps(state, running, first, steps, batches, stop_requested):
        rows = jnp.zeros((len(batches), columns))
        flags = jnp.zeros(len(batches), bool)
        if len(batches) == 1:
            state, running, row = step(state, running, first, batches[0])
            rows = row[None]
            flags = running[None]
        else:
            stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *batches)

            def body(i, carry):
                state, running, rows, flags = carry
                batch = jax.tree.map(lambda part: part[i], stacked)
                state, running, row = step(state, running, first + i, batch)
                return state, running, rows.at[i].set(row), flags.at[i].set(running)

            state, running, rows, flags = jax.lax.fori_loop(
                0, steps, body, (state, running, rows, flags)
            )
        outputs = {"metrics": rows, "running": flags, "stop_requested": jnp.sum(stop_requested)}
        return state, running, outputs

    replicated = NamedSharding(mesh, PartitionSpec())
    outputs = (shardings, replicated, replicated)
    return frozen.jit(train_steps, frozen_models, donate_argnums=(0,), out_shardings=outputs)


def make_swap_ema(shardings):
    """Returns a compiled function that swaps weights and EMA and donates its argument; without an
    EMA, the identity."""
    if not shardings.averages:
        return lambda state: state

    def swap(state):
        return dataclasses.replace(state, weights=state.averages, averages=state.weights)

    return jax.jit(swap, donate_argnums=0, out_shardings=shardings)


def make_sums(mesh, model, compute, weight_shardings, parts=1, frozen_models=()):
    """Returns the compiled function `sums(weights, statistics, batch)`; see `Engine._make_sums`."""
    names = []  # keys in the order of `compute`; jitted functions return dicts with sorted keys

    def part_sums(weights, statistics, batch):
        with (
            model_scope(model, weights, statistics, weight_shardings),
            compiling_for(platform_of(mesh)),
        ):
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

    replicated = NamedSharding(mesh, PartitionSpec())
    compiled = frozen.jit(batch_sums, frozen_models, out_shardings=replicated)

    def sums(weights, statistics, batch):
        values, weight = compiled(weights, statistics, batch)
        return dict(zip(names, values)), weight

    return sums
