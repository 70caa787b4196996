"""Passes the weights of models that are not trained to compiled functions, which would otherwise
contain them as constants."""

import jax

from keras_vit.training.jax.state import divided_sharding, put
from keras_vit.training.jax.variables import Scope, is_divided


def place(mesh, models, shard):
    """Places the variables of models on the devices, divided like trained weights."""
    for variable in _variables(models):
        shape = variable.shape if shard == "parameters" else ()
        variable.assign(put(jax.device_get(variable.value), divided_sharding(mesh, shape)))


def jit(function, models, donate_argnums=(), **options):
    """Returns `jax.jit(function)`; the variables of `models` are further arguments of the
    program."""
    variables = _variables(models)
    if not variables:
        return jax.jit(function, donate_argnums=donate_argnums, **options)
    shardings = {}
    for variable in variables:
        sharding = getattr(variable.value, "sharding", None)
        if isinstance(sharding, jax.sharding.NamedSharding) and is_divided(sharding):
            shardings[id(variable)] = sharding

    def with_values(values, *arguments):
        with Scope(zip(variables, values), shardings):
            return function(*arguments)

    donated = [1 + number for number in donate_argnums]
    return _Bound(jax.jit(with_values, donate_argnums=donated, **options), variables)


def _variables(models):
    return [variable for model in models for variable in model.variables]


class _Bound:
    """A jitted function whose first argument is the values of variables."""

    def __init__(self, function, variables):
        self._function = function
        self._variables = variables

    def __call__(self, *arguments):
        return self._function(self._values(), *arguments)

    def lower(self, *arguments):
        return self._function.lower(self._values(), *arguments)

    def _values(self):
        return [variable.value for variable in self._variables]
