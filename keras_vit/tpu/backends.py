"""The choice between the two backends."""

import keras


def programs_class():
    """Returns the `Programs` of Keras' backend."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from keras_vit.tpu.tensorflow_programs import TensorFlowPrograms

        return TensorFlowPrograms
    if backend == "jax":
        from keras_vit.tpu.jax_programs import JaxPrograms

        return JaxPrograms
    raise ValueError(
        "Training runs on TensorFlow and JAX: set KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax. "
        f"Received: backend={backend!r}"
    )
