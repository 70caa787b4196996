"""Sets a model's variables in a compiled function, and gathers sharded weights when a layer reads
them."""

import jax
import keras
from jax.sharding import NamedSharding, PartitionSpec


def model_scope(model, weights, statistics, gradient_shardings=()):
    """Returns a Keras scope in which the model's variables have the values `weights` and
    `statistics`."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    values = zip(variables, [*weights, *statistics], strict=True)
    shardings = zip(map(id, model.trainable_variables), gradient_shardings)
    return Scope(values, {key: sharding for key, sharding in shardings if is_divided(sharding)})


def keep_in_loop(weights, part, shardings):
    """Prevents the compiler from gathering all sharded weights before a loop, which would need more
    memory."""
    if any(map(is_divided, shardings)):
        return jax.lax.optimization_barrier((weights, part))
    return weights, part


def is_divided(sharding):
    """Returns whether an array with this sharding is split over devices."""
    return not sharding.is_fully_replicated


class Scope(keras.StatelessScope):
    """A scope in which variables have the given values. `gradient_shardings` maps the `id` of each
    variable whose value is split over devices to the sharding of its gradient."""

    def __init__(self, values, gradient_shardings):
        super().__init__(values)
        self._gradient_shardings = gradient_shardings

    def get_current_value(self, variable):
        value = super().get_current_value(variable)
        if value is None and self.original_scope is not None:  # a variable of a frozen model
            return self.original_scope.get_current_value(variable)
        sharding = self._gradient_shardings.get(id(variable))
        # Cast before gathering, so that mixed precision gathers 16-bit values. In a layer,
        # `variable.dtype` is the compute dtype.
        return value if sharding is None else _whole(value.astype(variable.dtype), sharding)


def _whole(weight, gradient_sharding):
    """Gathers a weight on every device and reduce-scatters its gradient, so each device sums only
    its own shard."""
    replicated = NamedSharding(gradient_sharding.mesh, PartitionSpec())

    @jax.custom_vjp
    def identity(weight):
        return jax.lax.with_sharding_constraint(weight, replicated)

    def backward(_, gradient):
        return (jax.lax.with_sharding_constraint(gradient, gradient_sharding),)

    identity.defvjp(lambda weight: (identity(weight), None), backward)
    return identity(weight)
