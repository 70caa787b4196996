"""Base class of most layers."""

import keras


class BaseLayer(keras.layers.Layer):
    """A layer that stores its constructor arguments as attributes and in its config.

    The default output shape is the input shape.
    """

    _argument_names: tuple[str, ...] = ()

    def _keep_arguments(self, local_names, omit=()):
        """Stores arguments as attributes that `get_config` returns.

        `local_names` is the `locals()` of a constructor. Arguments named in `omit` are left out.
        """
        left_out = ("self", "kwargs", "__class__", *omit)
        arguments = {name: value for name, value in local_names.items() if name not in left_out}
        for name, value in arguments.items():
            setattr(self, name, value)
        self._argument_names += tuple(arguments)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in self._argument_names},
        }
