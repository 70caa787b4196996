"""Creates the initial `TrainState` and its sharding, and places arrays on the devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from keras_vit.training.jax.devices import AXIS
from keras_vit.training.update import INITIAL_LOSS_SCALE, TrainState

# Arrays with fewer elements are replicated, because sharding them saves little memory and gathering
# them takes time.
MIN_SHARDED_SIZE = 2**16


jax.tree_util.register_dataclass(TrainState)


def initial_state(model, optimizer, averaged=False, scaled=False):
    """Returns the `TrainState` of a built model and its built optimizer, without moving arrays."""
    return TrainState(
        weights=_values(model.trainable_variables),
        statistics=_values(model.non_trainable_variables),
        slots=_values(optimizer.variables),
        averages=list(map(jnp.copy, _values(model.trainable_variables))) if averaged else [],
        scaling=[np.float32(INITIAL_LOSS_SCALE), np.int32(0)] if scaled else [],
    )


def _values(variables):
    return [variable.value for variable in variables]


def state_shardings(mesh, state, shard=""):
    """Returns the `NamedSharding` of each array in `state`, as a `TrainState`."""
    replicated = NamedSharding(mesh, PartitionSpec())

    def layout(arrays, divide):
        return [
            divided_sharding(mesh, np.shape(array)) if divide else replicated for array in arrays
        ]

    if (
        shard
        and mesh.size > 1
        and all(sharding == replicated for sharding in layout(state.weights, True))
    ):
        largest = max(np.size(array) for array in state.weights)
        raise ValueError(
            "`shard` must be '' for this model: none of its arrays of at least "
            f"{MIN_SHARDED_SIZE:,} elements has a dimension divisible by the {mesh.size} devices. "
            f"Received: shard={shard!r}, devices={mesh.size}, largest array={largest:,}"
        )
    return TrainState(
        weights=layout(state.weights, shard == "parameters"),
        statistics=layout(state.statistics, False),
        slots=layout(state.slots, shard),
        averages=layout(state.averages, shard),
        scaling=layout(state.scaling, False),
    )


def divided_sharding(mesh, shape):
    """Returns a sharding that splits the first dimension divisible by the number of devices.

    Small arrays and arrays without such a dimension are replicated.
    """
    axes = [axis for axis, side in enumerate(shape) if side % mesh.size == 0]
    if not axes or mesh.size == 1 or np.prod(shape) < MIN_SHARDED_SIZE:
        return NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec(*[None] * axes[0], AXIS))


def put(arrays, shardings):
    """Places arrays on the devices; each device receives only its shards.

    The arrays must be the same on all hosts. An array that is already in place is not copied, and
    the training step donates it, so no other variable may share its memory.
    """

    def place(array, sharding):
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        return jax.make_array_from_callback(
            np.shape(array), sharding, lambda index: np.asarray(array)[index]
        )

    return jax.tree.map(place, arrays, shardings)
