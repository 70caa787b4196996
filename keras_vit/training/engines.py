"""Chooses the engine for the active Keras backend."""

import keras
from ml_collections import ConfigDict

from keras_vit.training.engine import Engine
from keras_vit.training.hosts import workers

# Allowed values of `config.strategy`, on both backends.
STRATEGIES = ("auto", "default", "mirrored", "multi_worker", "tpu")


def choose_engine(config: ConfigDict) -> Engine:
    """Returns the engine for the active Keras backend, on the devices that a config selects.

    With several hosts or a TPU, call this function before any other backend operation in the
    process.

    Args:
        config: the config of a run; the function reads `strategy` and `tpu_address`.

    Raises:
        ValueError: the backend has no engine, the strategy is unknown, or the devices are not
            available.
    """
    name = config.strategy
    if name not in STRATEGIES:
        raise ValueError(
            f"`strategy` must be one of {', '.join(STRATEGIES)}. Received: strategy={name!r}"
        )
    if name == "multi_worker" and workers() is None:
        raise ValueError("TF_CONFIG must specify the workers. Received: strategy='multi_worker'")
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from keras_vit.training.tensorflow import TensorFlowEngine, choose_strategy

        return TensorFlowEngine(choose_strategy(name, config.tpu_address))
    if backend == "jax":
        from keras_vit.training.jax import JaxEngine, choose_mesh

        return JaxEngine(choose_mesh(name, config.tpu_address))
    raise ValueError(
        "Training supports the TensorFlow and JAX backends: set KERAS_BACKEND=tensorflow or "
        f"KERAS_BACKEND=jax. Received: backend={backend!r}"
    )
