"""Computes the update of a training step for both engines.

The operations, in order:

    unscale     gradients / loss_scale, only with mixed_float16
    norm        of the gradients of the whole batch
    check       loss, metrics and norm are finite; no earlier step ended the `Engine.train` call
    clip        by the norm
    optimizer   new weights and slots
    EMA         average + (1 - ema_decay) * (weight - average)

The last three are one function of a parameter, which an engine may compile, so that each parameter
is read and written only once. If the check fails, the state does not change, except for the loss
scale and its counter `good_steps`.
"""

import dataclasses
import functools
import itertools
from typing import Any

from keras import ops

from keras_vit.optimizers.clipping import clip_factor, ema_update

INITIAL_LOSS_SCALE = 2.0**15
# The loss scale doubles after this many consecutive finite steps. It halves after a step whose loss
# and metrics are finite and whose gradients are not, because the scaled gradients may have
# overflowed.
LOSS_SCALE_GROWTH_STEPS = 2000


@dataclasses.dataclass(frozen=True)
class TrainState:
    """The values that a training step changes, as lists in the order of the variables; checkpoints
    store them."""

    weights: list[Any]  # values of `model.trainable_variables`
    statistics: list[Any]  # values of `model.non_trainable_variables`, updated by the forward pass
    slots: list[Any]  # values of `optimizer.variables`, including the number of updates
    averages: list[Any]  # EMA of each weight, initially a copy; empty without EMA
    scaling: list[Any]  # `[loss_scale, good_steps]` with mixed_float16, otherwise empty


def step_metrics(task):
    """Returns the names of the metrics of a step, in the order in which `update` returns the
    values."""
    return ("loss", *task.metrics, "grad_norm", "learning_rate")


def update(
    optimizer,
    state,
    gradients,
    means,
    statistics,
    running,
    *,
    clip_norm=0.0,
    ema_decay=0.0,
    skip_nonfinite=False,
    where=ops.where,
    compiled=lambda function: function,
):
    """Returns `(state, running, metrics)` after one update of a `TrainState` of tensors.

    `metrics` is `means`, followed by the global norm of the gradients before clipping and the
    learning rate.

    A step whose loss, metrics or gradients are not finite changes no weights. It also sets
    `running` to False, so that later steps of the same `Engine.train` call change nothing. There
    are two exceptions, in which `running` stays True: `skip_nonfinite` is set, or only gradients
    are not finite and the loss scale of mixed_float16 is above 1, its minimum.

    Args:
        optimizer: the built optimizer.
        state: the `TrainState` before the step.
        gradients: gradients of the mean loss of the whole batch; with mixed_float16, multiplied by
            the loss scale.
        means: float32 `(1 + number of metrics,)`, the mean loss and metrics.
        statistics: statistics after the forward pass.
        running: boolean scalar; False if an earlier step ended the call.
        clip_norm, ema_decay, skip_nonfinite: the fields of the config.
        where: function `where(condition, new, old)` that selects a tensor.
        compiled: function that returns a compiled form of the update of a parameter.
    """
    learning_rate = optimizer.learning_rate_at(state.slots)
    loss_scale, good_steps = state.scaling or (None, None)

    # Unscale the gradients of the whole batch, and check them.
    if loss_scale is not None:
        gradients = [gradient / loss_scale for gradient in gradients]
    factor, norm = clip_factor(gradients, clip_norm)
    finite_means = ops.all(ops.isfinite(means))
    finite = ops.logical_and(finite_means, ops.isfinite(norm))
    use = ops.logical_and(running, finite)

    # Update weights, slots, EMA and statistics, which keep their values if `use` is false.
    def make_update(has_decay):
        return compiled(make_parameter_update(optimizer, ema_decay, where, has_decay))

    weights, slots, averages = _update_parameters(
        optimizer, state, gradients, learning_rate, factor, use, where, make_update
    )
    statistics = [
        where(use, new, old) for new, old in zip(statistics, state.statistics, strict=True)
    ]

    # Decide whether the call continues, and adapt the loss scale.
    can_continue = ops.logical_or(finite, skip_nonfinite)
    scaling = []
    if loss_scale is not None:
        scale_too_high = ops.logical_and(finite_means, ops.logical_not(finite))
        scaling = list(update_loss_scale(loss_scale, good_steps, finite, scale_too_high, running))
        can_continue = ops.logical_or(
            can_continue, ops.logical_and(scale_too_high, loss_scale > 1.0)
        )
    metrics = ops.concatenate([means, ops.stack([norm, learning_rate])])
    state = TrainState(weights, statistics, slots, averages, scaling)
    return state, ops.logical_and(running, can_continue), metrics


def _update_parameters(optimizer, state, gradients, learning_rate, factor, use, where, make_update):
    """Returns the next weights, slots and averages; `make_update(has_decay)` returns the update of
    a parameter."""
    slots, step = optimizer.split_state(state.slots)
    averages = [[average] for average in state.averages] or [[]] * len(slots)
    cache = {}
    functions = {}  # parameters of the same shape share a function, which is compiled once
    updated = []
    for index, (weight, gradient) in enumerate(zip(state.weights, gradients, strict=True)):
        if start := optimizer.starts[index]:
            # Skipped steps are no updates, so a held parameter may already have a gradient.
            gradient = ops.where(step < start, ops.zeros_like(gradient), gradient)
        has_decay = optimizer.decays[index] > 0
        key = (tuple(weight.shape), str(weight.dtype), has_decay)
        if key not in functions:
            functions[key] = make_update(has_decay)
        scalars = optimizer.scalars(index, learning_rate, step, cache)
        updated.append(
            functions[key](gradient, weight, slots[index], averages[index], factor, scalars, use)
        )
    weights, slots, averages = map(list, zip(*updated))
    slots = optimizer.join_state(state.slots, slots, where(use, step + 1, step))
    return weights, slots, list(itertools.chain.from_iterable(averages))


def make_parameter_update(optimizer, ema_decay, where, has_decay):
    """Returns the function that clips the gradient of one parameter and updates its weight, slots
    and EMA."""

    def parameter_update(gradient, weight, slots, averages, factor, scalars, use):
        select = functools.partial(where, use)
        if factor is not None:
            gradient = ops.cast(factor, gradient.dtype) * gradient
        weight, slots = optimizer.update_parameter(
            gradient, weight, slots, scalars, has_decay, select
        )
        averages = [select(ema_update(average, weight, ema_decay), average) for average in averages]
        return weight, slots, averages

    return parameter_update


def update_loss_scale(loss_scale, good_steps, finite, too_high, running):
    """Returns the next loss scale, at least 1, and the number of consecutive finite steps since the
    scale changed.

    Both values stay the same if `running` is False.
    """
    good = ops.where(finite, good_steps + 1, 0)
    growth = ops.where(ops.equal(good, LOSS_SCALE_GROWTH_STEPS), 2.0, ops.where(too_high, 0.5, 1.0))
    new_scale = ops.where(running, ops.maximum(loss_scale * growth, 1.0), loss_scale)
    good = ops.where(running, good % LOSS_SCALE_GROWTH_STEPS, good_steps)
    return new_scale, ops.cast(good, good_steps.dtype)
