"""Dropout whose masks can be made a function of a key."""

import contextlib
import threading

import keras
from keras import ops

# A strategy runs every replica in a thread of its own.
_THREAD = threading.local()


class Draws(keras.random.SeedGenerator):
    """The seeds of one forward pass: the n-th draw from `key` gets `key + (0, n)`. There is no state to save.

    Args:
        key: integer tensor `(2,)`.

    Attributes:
        count: how many were drawn.
    """

    def __init__(self, key):
        # Not the parent's, which makes a variable.
        self.key = key
        self.count = 0

    def next(self, ordered=True):
        number = ops.cast(ops.stack([0, self.count]), self.key.dtype)
        self.count += 1
        return self.key + number


@contextlib.contextmanager
def drawing_from(draws):
    """While it is open, every `Dropout` of this thread takes its seeds from `draws`, or from its own where that is
    None."""
    before = current_draws()
    _THREAD.draws = draws
    try:
        yield
    finally:
        _THREAD.draws = before


def current_draws():
    """The `Draws` of this thread, or None."""
    return getattr(_THREAD, "draws", None)


@keras.saving.register_keras_serializable(package="keras_vit")
class Dropout(keras.layers.Dropout):
    """Keras' `Dropout`, which draws from the key of the step where there is one.

    Keras' own keeps a counter for each layer: under a strategy every replica has the same, so the same mask, and
    where a block is computed twice, the second time has another mask. Inside `drawing_from(Draws(key))` a mask depends
    on nothing but the key and its place in the model; outside of it this is Keras' layer.

    Args:
        rate: share of the inputs that is dropped, in [0, 1).

    Call arguments:
        inputs: float, of any shape.
        training: whether anything is dropped.

    Returns:
        The inputs, with zeros in places of the dropped and the others divided by the share that is kept.
    """

    def call(self, inputs, training=False):
        draws = current_draws()
        if draws is None or not training or not self.rate:
            return super().call(inputs, training=training)
        return keras.random.dropout(inputs, self.rate, noise_shape=self.noise_shape, seed=draws)
