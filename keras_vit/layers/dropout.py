"""Dropout whose masks, inside `seed_scope`, depend only on a key and the order of the draws."""

import contextlib
import threading

import keras
from keras import ops

from keras_vit.layers.base import serializable

# `MirroredStrategy` runs each replica in a separate thread.
_THREAD = threading.local()


class StepSeeds(keras.random.SeedGenerator):
    """The seeds of one forward pass: draw n uses the seed `key + (0, n)`.

    `key` is an integer array of shape `(2,)`.
    """

    def __init__(self, key):
        # Do not call the parent constructor, which creates a variable.
        self.key = key
        self.count = 0

    def next(self, ordered=True):
        number = ops.cast(ops.stack([0, self.count]), self.key.dtype)
        self.count += 1
        return self.key + number


@contextlib.contextmanager
def seed_scope(seeds):
    """Makes every `Dropout` in this thread draw from `seeds`; None selects Keras' own seeds."""
    before = current_seeds()
    _THREAD.seeds = seeds
    try:
        yield
    finally:
        _THREAD.seeds = before


def current_seeds():
    """Returns the `StepSeeds` of this thread, or None."""
    return getattr(_THREAD, "seeds", None)


@serializable
class Dropout(keras.layers.Dropout):
    """Keras' `Dropout`, except that it draws from the seeds of `seed_scope` inside such a scope."""

    # Keras' layer derives seeds from a call counter. With it, replicas would share masks, and
    # rematerialized blocks would draw different masks in the recomputation.

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        seeds = current_seeds()
        if seeds is None:
            return super().call(inputs, training=training)
        return keras.random.dropout(inputs, self.rate, noise_shape=self.noise_shape, seed=seeds)
