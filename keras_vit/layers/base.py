"""Base class of most layers, and the decorator of classes that `.keras` files contain."""

import types
from collections.abc import Mapping

import keras

# Registers a class under the name that `.keras` files have for it.
serializable = keras.saving.register_keras_serializable("keras_vit")


def arguments_among(local_names, omit=()):
    """Returns a constructor's arguments by name, given its `locals()`, without those in `omit`."""
    left_out = ("self", "kwargs", "__class__", *omit)
    return {name: value for name, value in local_names.items() if name not in left_out}


class BaseLayer(keras.layers.Layer):
    """A layer that stores its constructor arguments as attributes and in its config.

    The default output shape is the input shape.
    """

    _argument_names: tuple[str, ...] = ()

    def _keep_arguments(self, local_names):
        """Stores arguments, given the `locals()` of a constructor, as attributes."""
        arguments = arguments_among(local_names)
        for name, value in arguments.items():
            # Keras tracks the values of a dict, but not those of a read-only mapping.
            is_mapping = isinstance(value, Mapping)
            setattr(self, name, types.MappingProxyType(dict(value)) if is_mapping else value)
        self._argument_names += tuple(arguments)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self):
        config = super().get_config()
        for name in self._argument_names:
            value = getattr(self, name)
            config[name] = dict(value) if isinstance(value, Mapping) else value
        return config

    def expect_tokens(self, shape):
        """Makes later calls refuse tokens of another number or size than in `shape`."""
        self.input_spec = keras.layers.InputSpec(shape=(None, *shape[1:]))

    def add_normal_weight(self, name, shape):
        """Adds a weight with normal initial values of standard deviation 0.02."""
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        return self.add_weight(name=name, shape=shape, initializer=initializer)
