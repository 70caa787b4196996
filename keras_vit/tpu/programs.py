"""The base class of both backends' programs."""

import math

import keras


class Programs:
    """The steps of a run, compiled for a slice; each backend has a subclass.

    A subclass has the property `state_bytes` and the methods `_build(inputs, total_steps)`, which returns the model,
    `train(batch_size, accumulate_steps)` and `evaluation(batch_size, accumulate_steps)`, which return a `Program`.
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
        """Bytes of the gradients in float32."""
        return 4 * sum(math.prod(weight.shape) for weight in self.model.trainable_weights)
