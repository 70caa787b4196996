"""Sets the global state that building a model reads."""

import contextlib
import random

import keras
import numpy as np


@contextlib.contextmanager
def dtype_policy_and_seed(config):
    """Sets Keras' dtype policy and the initializers' seed from the config, and restores both on
    exit."""
    policy = keras.config.dtype_policy()
    states = (random.getstate(), np.random.get_state())
    try:
        keras.config.set_dtype_policy(config.precision)
        random.seed(config.seed)  # Keras' initializers draw their seeds from `random`
        np.random.seed(config.seed)  # custom tasks may draw initial values from numpy
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        random.setstate(states[0])
        np.random.set_state(states[1])
