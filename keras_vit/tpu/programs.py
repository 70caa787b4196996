"""Base class for compiling the steps of a run."""

import math

import keras


class Programs:
    """Compiles the steps of a run for a slice; each backend has a subclass.

    A subclass defines the property `state_bytes`, the method `_build(inputs, total_steps)`, which returns the model,
    and the methods `train` and `evaluation`, which map `(batch_size, accumulate_steps)` to a `Program`.
    """

    def __init__(self, config, task, inputs, topology, total_steps):
        self._config, self._task, self.topology = config, task, topology
        self._image_shape = inputs.image_shape
        self._batch_shapes = (inputs.image_shape, (len(inputs.train.class_names),), ())  # images, labels, weights
        policy = keras.config.dtype_policy()
        keras.config.set_dtype_policy(config.precision)
        try:
            self.model = self._build(inputs, total_steps)
        finally:
            keras.config.set_dtype_policy(policy)

    @property
    def gradient_bytes(self):
        """Size of the float32 gradients in bytes."""
        return 4 * sum(math.prod(weight.shape) for weight in self.model.trainable_weights)
