"""What compiles the steps of a run, on either backend."""

import contextlib
import math

import keras


class Programs:
    """The steps of a run, compiled for a slice. Each backend has a subclass.

    Args:
        config: the recipe; its `batch_size` is not used.
        task: the `tasks.Task`.
        inputs: an `InputPipeline`, or `InputShapes`.
        topology: the `Topology`.
        total_steps: of the whole run, for the schedule.

    Attributes:
        model: the model of the task.
        topology: the argument.

    Raises:
        ValueError: the config cannot be satisfied on the slice.
    """

    def __init__(self, config, task, inputs, topology, total_steps):
        self._config, self._task, self.topology = config, task, topology
        self._image_shape = inputs.image_shape
        self._batch_shapes = (inputs.image_shape, (len(inputs.train.class_names),), ())  # images, labels, weights
        with dtype_policy(config.precision):
            self.model = self._build(inputs, total_steps)

    def _build(self, inputs, total_steps):
        """Builds the model and what else a step needs; returns the model."""
        raise NotImplementedError

    def train(self, batch_size, accumulate_steps, machine_code=True):
        """The `Program` of what is executed for a training step.

        Args:
            batch_size: over all devices of the slice, which divide it.
            accumulate_steps: micro-batches of a device's part.
            machine_code: whether to compile to the end; see `compiler.compile_program`. JAX always does.
        """
        raise NotImplementedError

    def evaluation(self, batch_size, accumulate_steps, machine_code=True):
        """The `Program` of an evaluation step; see `train`."""
        raise NotImplementedError

    @property
    def state_bytes(self):
        """Of the weights, the optimizer and the averages, of a device; without what fills up the tiles."""
        raise NotImplementedError

    @property
    def gradient_bytes(self):
        """Of the gradients, float32."""
        return 4 * sum(math.prod(weight.shape) for weight in self.model.trainable_weights)

    def batch_bytes(self, size):
        """Of `size` images, their labels and example weights, float32."""
        return 4 * size * sum(math.prod(shape) for shape in self._batch_shapes)


def programs_class():
    """The `Programs` of Keras' backend.

    Raises:
        ValueError: training does not run on this backend.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from keras_vit.tpu.tensorflow_programs import TensorFlowPrograms

        return TensorFlowPrograms
    if backend == "jax":
        from keras_vit.tpu.jax_programs import JaxPrograms

        return JaxPrograms
    raise ValueError(
        "Training runs on the backends TensorFlow and JAX: set KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax. "
        f"Received: backend={backend!r}"
    )


@contextlib.contextmanager
def dtype_policy(name):
    """While it is open, Keras has the dtype policy of a name."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
