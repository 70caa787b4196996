"""The values that training changes, and how they lie on the devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keras_vit.training.jax.devices import AXIS
from keras_vit.training.loss_scaling import INITIAL_LOSS_SCALE

# Arrays of fewer numbers stay whole on every device: sending their parts around costs more than it saves.
MIN_SHARDED_SIZE = 2**16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Arrays, in the order of the variables that they are the values of.

    Attributes:
        weights: of `model.trainable_variables`.
        statistics: of `model.non_trainable_variables`, which layers write in the forward pass.
        slots: of `optimizer.variables`, the number of updates included.
        averages: one for each of `weights`, which starts as a copy; none without averages.
        scaling: `[loss_scale, good_steps]`, as `update_loss_scale` takes them; empty unless the loss is scaled.
    """

    weights: list
    statistics: list
    slots: list
    averages: list
    scaling: list


def initial_state(model, optimizer, averaged=False, scaled=False):
    """The `State` of a model and its optimizer, numpy arrays.

    Args:
        model: a built `keras.Model`.
        optimizer: a Keras optimizer, built on the model's trainable variables.
        averaged: whether averages of the weights are kept.
        scaled: whether the loss is scaled, as float16 needs.
    """
    values = lambda variables: [np.asarray(variable.value) for variable in variables]  # noqa: E731
    return State(
        weights=values(model.trainable_variables),
        statistics=values(model.non_trainable_variables),
        slots=values(optimizer.variables),
        averages=[array.copy() for array in values(model.trainable_variables)] if averaged else [],
        scaling=[np.float32(INITIAL_LOSS_SCALE), np.int32(0)] if scaled else [],
    )


def state_shardings(mesh, state, shard=""):
    """How a `State` lies on the devices: a `State` of `NamedSharding`s.

    Args:
        mesh: of the axis "data".
        state: a `State` of arrays.
        shard: one of `validation.SHARDS`.

    Raises:
        ValueError: the devices cannot divide any array that is to be divided.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    whole = lambda arrays: [replicated for _ in arrays]  # noqa: E731
    parts = lambda arrays: [divided_sharding(mesh, np.shape(array)) for array in arrays]  # noqa: E731
    if shard and mesh.size > 1 and all(sharding == replicated for sharding in parts(state.weights)):
        largest = max(np.size(array) for array in state.weights)
        raise ValueError(
            f"`shard` divides arrays of {MIN_SHARDED_SIZE:,} numbers or more among the devices, and the model has none "
            f"with a side that {mesh.size} devices divide; `shard` must be '' here. "
            f"Received: shard={shard!r}, devices={mesh.size}, largest array={largest:,}"
        )
    return State(
        weights=parts(state.weights) if shard == "parameters" else whole(state.weights),
        statistics=whole(state.statistics),
        slots=parts(state.slots) if shard else whole(state.slots),
        averages=parts(state.averages) if shard else whole(state.averages),
        scaling=whole(state.scaling),
    )


def divided_sharding(mesh, shape):
    """The sharding of an array along its first side that the devices divide; whole on each if it is small, or there is
    none."""
    axes = [axis for axis, side in enumerate(shape) if side % mesh.size == 0]
    if not axes or mesh.size == 1 or np.prod(shape) < MIN_SHARDED_SIZE:
        return NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec(*[None] * axes[0], AXIS))


def put(arrays, shardings):
    """Arrays of numpy, the same on every host, on the devices: each device gets its part alone."""

    def place(array, sharding):
        return jax.make_array_from_callback(np.shape(array), sharding, lambda index: np.asarray(array)[index])

    return jax.tree.map(place, arrays, shardings)


@jax.jit
def all_finite(arrays):
    """Whether every number of a list of arrays is finite; integers are."""
    floats = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(array)) for array in floats]))
