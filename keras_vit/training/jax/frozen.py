"""Passes the weights of models that are not trained to compiled functions, which would otherwise
contain them as constants."""

import dataclasses
from typing import Any

import jax
import keras

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
    shardings = {
        id(variable): variable.value.sharding
        for variable in variables
        if is_divided(variable.value.sharding)
    }

    def with_values(values, *arguments):
        with Scope(zip(variables, values), shardings):
            return function(*arguments)

    donated = [1 + number for number in donate_argnums]
    return _Bound(jax.jit(with_values, donate_argnums=donated, **options), variables)


def _variables(models):
    return [variable for model in models for variable in model.variables]


@dataclasses.dataclass
class _Bound:
    """A jitted function whose first argument is the values of variables."""

    function: Any
    variables: list[keras.Variable]

    def __call__(self, *arguments):
        return self.function(self._values(), *arguments)

    def lower(self, *arguments):
        return self.function.lower(self._values(), *arguments)

    def _values(self):
        return [variable.value for variable in self.variables]
