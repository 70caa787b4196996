"""Tests of dropout: its seeds, rates and masks on both backends."""

import threading

import keras
import numpy as np
from keras import ops

from keras_vit.layers.dropout import Dropout, StepSeeds, current_seeds, seed_scope

from ..shared import to_numpy

ONES = np.ones((4, 50), "float32")


def _key(*numbers):
    return ops.convert_to_tensor(numbers, "uint32" if keras.backend.backend() == "jax" else "int32")


def _masks(key, layers, calls=1):
    """Calls each layer in turn, `calls` times, and returns the outputs for ones."""
    with seed_scope(StepSeeds(key)):
        return [to_numpy(layer(ONES, training=True)) for layer in layers * calls]


def test_mask_depends_only_on_key_and_call_order():
    masks = _masks(_key(1, 2), [Dropout(0.5), Dropout(0.5)], calls=2)
    repeated = _masks(_key(1, 2), [Dropout(0.5), Dropout(0.5)], calls=2)
    np.testing.assert_array_equal(masks, repeated)
    masks += _masks(_key(2, 2), [Dropout(0.5)])
    # Every call has a mask of its own, and the other key as well.
    assert len({mask.tobytes() for mask in masks}) == 5
    for mask in masks:
        assert set(np.unique(mask)) == {0, 2}
        assert 0.35 < (mask == 0).mean() < 0.65


def test_dropout_without_seed_scope_matches_keras():
    ours = Dropout(0.5, seed=3)
    theirs = keras.layers.Dropout(0.5, seed=3)
    for _ in range(2):
        np.testing.assert_array_equal(
            to_numpy(ours(ONES, training=True)), to_numpy(theirs(ONES, training=True))
        )


def test_inference_draws_no_mask():
    layer = Dropout(0.5)
    with seed_scope(StepSeeds(_key(1, 2))):
        np.testing.assert_array_equal(to_numpy(layer(ONES)), ONES)
        assert current_seeds().count == 0


def test_seed_scope_is_local_to_thread_and_context():
    seeds_in_thread = []
    with seed_scope(StepSeeds(_key(1, 2))):
        thread = threading.Thread(target=lambda: seeds_in_thread.append(current_seeds()))
        thread.start()
        thread.join()
        assert current_seeds() is not None
    assert seeds_in_thread == [None] and current_seeds() is None
