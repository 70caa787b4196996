"""One step of training, and several of them as one program."""

import dataclasses

import jax
import jax.numpy as jnp
import keras
from jax.sharding import NamedSharding, PartitionSpec

from keras_vit import optimizers
from keras_vit.training.jax.gradients import make_compute_gradients
from keras_vit.training.jax.state import State
from keras_vit.training.loss_scaling import update_loss_scale


def make_step(
    mesh, model, optimizer, task, shardings, *, clip_norm=0.0, ema_decay=0.0, skip_nonfinite=False, **options
):
    """The function that does one step.

    A step whose loss or gradients are not finite changes no weight. It ends its call, unless `skip_nonfinite` is set or
    only the scale of a float16 loss was too large: `running` becomes False, and later steps of the call change nothing.

    Args:
        mesh: the devices.
        model: the model of the task.
        optimizer: its optimizer, built.
        task: the `tasks.Task`.
        shardings: the `State` of shardings.
        clip_norm: the largest global norm of the gradients; 0 for no clipping.
        ema_decay: of the averages of the weights, in [0, 1); 0 for none.
        skip_nonfinite: whether training goes on after a step that is not finite.
        **options: of `make_compute_gradients`.

    Returns:
        `step(state, running, number, batch)` to `(state, running, metrics)`: the new `State`, whether the steps after
        it change anything, and the metrics, float32 `(metrics,)` in the order of `step_metrics`.
    """
    # Where every device updates a part of the weights, it needs no more than that part of the gradients.
    gradient_shardings = slot_shardings_of_weights(optimizer, shardings)
    compute_gradients = make_compute_gradients(mesh, model, task, shardings.weights, gradient_shardings, **options)

    def step(state, running, number, batch):
        learning_rate = learning_rate_of(optimizer, state.slots)
        loss_scale, good_steps = state.scaling or (None, None)

        gradients, means, statistics = compute_gradients(state.weights, state.statistics, number, batch, loss_scale)
        gradients = jax.lax.with_sharding_constraint(gradients, gradient_shardings)
        if loss_scale is not None:
            gradients = [gradient / loss_scale for gradient in gradients]
        gradients, norm = optimizers.clip_by_global_norm(gradients, clip_norm)
        all_finite = jnp.all(jnp.isfinite(means)) & jnp.isfinite(norm)
        use = running & all_finite

        with optimizer.only_if(use):
            weights, slots = optimizer.stateless_apply(state.slots, gradients, state.weights)
        averages = [
            jnp.where(use, optimizers.ema_update(average, weight, ema_decay), average)
            for average, weight in zip(state.averages, weights)
        ]
        statistics = [jnp.where(use, new, old) for new, old in zip(statistics, state.statistics)]

        can_go_on, scaling = all_finite | skip_nonfinite, []
        if loss_scale is not None:
            scaling = list(update_loss_scale(loss_scale, good_steps, all_finite, running))
            can_go_on |= jnp.isfinite(means[0]) & (scaling[0] >= 1.0)
        new_state = State(weights, statistics, slots, averages, scaling)
        new_state = jax.lax.with_sharding_constraint(new_state, shardings)
        return new_state, running & can_go_on, jnp.concatenate([means, jnp.stack([norm, learning_rate])])

    return step


def make_train_steps(mesh, model, optimizer, task, shardings, **options):
    """The compiled function that trains; it takes the memory of the state it is called with for the new one.

    Args:
        mesh, model, optimizer, task, shardings, **options: see `make_step`.

    Returns:
        `train_steps(state, running, first, steps, batches, stop_requested)`, with a list of n batches, of which it uses
        the first `steps`, and `stop_requested`, float32 `(devices,)`. It gives the new `State`; `running`, bool; and a
        dict with "metrics", float32 `(n, metrics)`; "running", bool `(n,)`, False from the step on that ended the call;
        and "stop_requested", the sum of the argument. It is compiled once for each n.
    """
    step = make_step(mesh, model, optimizer, task, shardings, **options)
    columns = 1 + len(task.metrics) + 2

    def train_steps(state, running, first, steps, batches, stop_requested):
        rows, flags = jnp.zeros((len(batches), columns)), jnp.zeros(len(batches), bool)
        if len(batches) == 1:
            state, running, row = step(state, running, first, batches[0])
            rows, flags = row[None], running[None]
        else:
            stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *batches)

            def body(i, carry):
                state, running, rows, flags = carry
                batch = jax.tree.map(lambda part: part[i], stacked)
                state, running, row = step(state, running, first + i, batch)
                return state, running, rows.at[i].set(row), flags.at[i].set(running)

            state, running, rows, flags = jax.lax.fori_loop(0, steps, body, (state, running, rows, flags))
        outputs = {"metrics": rows, "running": flags, "stop_requested": jnp.sum(stop_requested)}
        return state, running, outputs

    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(train_steps, donate_argnums=0, out_shardings=(shardings, replicated, replicated))


def learning_rate_of(optimizer, slots):
    """The learning rate of the next update, a float32 scalar."""
    with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, slots))):
        return keras.ops.cast(optimizer.learning_rate, "float32")


def slot_shardings_of_weights(optimizer, shardings):
    """For each weight, the sharding of its momentum."""
    by_variable = {id(variable): sharding for variable, sharding in zip(optimizer.variables, shardings.slots)}
    return [by_variable[id(momentum)] for momentum in optimizer.momentums]


def make_swap_ema(shardings):
    """The compiled function that lets the weights and averages of a `State` trade places.

    Each lies on the devices as the other did. It takes the memory of the state it is called with; without averages it
    does nothing.
    """
    if not shardings.averages:
        return lambda state: state
    swap = lambda state: dataclasses.replace(state, weights=state.averages, averages=state.weights)  # noqa: E731
    return jax.jit(swap, donate_argnums=0, out_shardings=shardings)
