"""Dropout whose masks can be made a function of a key."""

import contextlib
import sys
import threading
import warnings

import keras
from keras import ops

# A strategy runs every replica in a thread of its own.
_THREAD = threading.local()


class StepSeeds(keras.random.SeedGenerator):
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
def seed_scope(draws):
    """While it is open, every `Dropout` of this thread takes its seeds from `draws`, or from its own where that is
    None."""
    before = current_seeds()
    _THREAD.draws = draws
    try:
        yield
    finally:
        _THREAD.draws = before


def current_seeds():
    """The `StepSeeds` of this thread, or None."""
    return getattr(_THREAD, "draws", None)


@keras.saving.register_keras_serializable(package="keras_vit")
class Dropout(keras.layers.Dropout):
    """Keras' `Dropout`, which draws from the key of the step where there is one.

    Keras' own keeps a counter for each layer: under a strategy every replica has the same, so the same mask, and
    where a block is computed twice, the second time has another mask. Inside `seed_scope(StepSeeds(key))` a mask
    depends on nothing but the key and its place in the model; outside of it this is Keras' layer.

    Args:
        rate: share of the inputs that is dropped, in [0, 1).

    Call arguments:
        inputs: float, of any shape.
        training: whether anything is dropped.

    Returns:
        The inputs, with zeros in places of the dropped and the others divided by the share that is kept.

    Warns:
        UserWarning: it draws from Keras' counter under a `tf.distribute` strategy of several replicas.
    """

    def call(self, inputs, training=False):
        draws = current_seeds()
        if not training or not self.rate:
            return inputs
        if draws is None:
            _warn_of_equal_masks()
            return super().call(inputs, training=training)
        return keras.random.dropout(inputs, self.rate, noise_shape=self.noise_shape, seed=draws)


def _warn_of_equal_masks():
    # Not imported: only who has made a strategy has TensorFlow.
    tensorflow = sys.modules.get("tensorflow")
    if keras.backend.backend() == "tensorflow" and tensorflow.distribute.get_strategy().num_replicas_in_sync > 1:
        warnings.warn(
            "Under this strategy every replica drops the same: Keras gives them the same seeds. "
            "`keras_vit.training` trains with masks of their own.",
            stacklevel=2,
        )
