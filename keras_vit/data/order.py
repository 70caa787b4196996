"""The order of examples, computed from positions, slots and hosts.

Slot `slot` of the batch of step `step` has the position `step * batch_size + slot`. Epoch `e` starts at the position
`e * num_examples`.
"""

import numpy as np
import tensorflow as tf

FORMS = ("roll", "reverse")

# Constants of splitmix64: the increment, and the shifts and factors of its finalizer.
_STEP, _FACTORS = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
# With the default of 4 rounds and small integers as keys, small epochs are hardly shuffled and consecutive epochs are
# similar. With 8 rounds and hashed keys, all our statistics agree with chance.
_ROUNDS = 8


def host_slice(batch_size, num_hosts, host_index):
    """Returns the slots of a global batch that belong to one host, as a `range`."""
    if batch_size < 1 or num_hosts < 1 or batch_size % num_hosts or not 0 <= host_index < num_hosts:
        raise ValueError(
            "The batch must be divisible into equal shares, one per host. "
            f"Received: batch_size={batch_size}, num_hosts={num_hosts}, host_index={host_index}"
        )
    share = batch_size // num_hosts
    return range(host_index * share, (host_index + 1) * share)


def host_rows(host_slots, batch_size, mixup_form=""):
    """Returns the slots that a host reads, ascending; then, as indices into these, its own slots and their partners."""
    # Each slot is mixed with the previous one of the global batch, or with its mirror image.
    partner_of = {"roll": lambda slot: (slot - 1) % batch_size, "reverse": lambda slot: batch_size - 1 - slot}
    partners = [partner_of[mixup_form](slot) for slot in host_slots] if mixup_form else []
    slots = sorted({*host_slots, *partners})
    return tuple(slots), np.searchsorted(slots, host_slots), np.searchsorted(slots, partners)


def index_at(position, num_examples, seed):
    """Returns the epoch and the index of the example at each position of the training order, both int64."""
    epoch, place = position // num_examples, position % num_examples
    # A shuffled index, unlike a shuffle buffer, reaches any step at once. Use the raw op, because
    # `tf.random.experimental.index_shuffle` takes no seed per index.
    last = tf.constant(num_examples - 1, tf.int64)
    key = shuffle_key(seed, epoch)
    return epoch, tf.raw_ops.RandomIndexShuffle(index=place, seed=key, max_index=last, rounds=_ROUNDS)


def shuffled(values, key):
    """Returns values `(V,)` shuffled by a key `(3,)` from `shuffle_key`."""
    positions = tf.range(tf.size(values, tf.int64), dtype=tf.int64)
    last = tf.maximum(tf.size(values, tf.int64) - 1, 0)
    return tf.gather(values, tf.raw_ops.RandomIndexShuffle(index=positions, seed=key, max_index=last, rounds=_ROUNDS))


def shuffle_key(seed, *numbers):
    """Returns the key of a shuffle, int64 `(..., 3)`; similar seeds or epochs give unrelated keys."""
    first = splitmix64(tf.constant(seed, tf.uint64), 0)
    for number in numbers:
        first = splitmix64(first, number)
    second, low = splitmix64(first, 0), tf.constant(2**32, tf.uint64)
    return tf.cast(tf.stack([first % low, first // low, second % low], -1), tf.int64)


def splitmix64(state, number):
    """Returns output number `number`, from 0, of a splitmix64 generator: uint64 of any shape."""
    state = state + (tf.cast(number, tf.uint64) + 1) * tf.constant(_STEP, tf.uint64)
    for shift, factor in _FACTORS:
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, tf.constant(shift, tf.uint64)))
        state *= tf.constant(factor, tf.uint64)
    return state
