"""The base class of the layers."""

import keras


class BaseLayer(keras.layers.Layer):
    """A layer that keeps its arguments as attributes and in its config; by default its output has its input's shape."""

    _kept: tuple = ()

    def _keep_arguments(self, local_names, but=()):
        """Sets an attribute for each argument of a constructor, given its `locals()`, for `get_config`."""
        left_out = ("self", "kwargs", "__class__", *but)
        arguments = {name: value for name, value in local_names.items() if name not in left_out}
        for name, value in arguments.items():
            setattr(self, name, value)
        self._kept += tuple(arguments)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self):
        return {**super().get_config(), **{name: getattr(self, name) for name in self._kept}}
