"""The order of examples: arithmetic on positions, slots and hosts.

Position `step * batch_size + slot` is a slot of a batch; epoch e holds the positions from `e * num_examples` on.
"""

import numpy as np
import tensorflow as tf

FORMS = ("roll", "reverse")

# The constants of splitmix64: what it adds for each number, and the factors of its finalizer.
_STEP, _FACTORS = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
# With the default of 4 rounds and keys of small numbers, most examples of a small epoch stay where they are stored, and
# the orders of neighboring epochs are alike. With 8 rounds and keys that are hashed, no statistic is off chance.
_ROUNDS = 8


def host_slice(batch_size, num_hosts, host_index):
    """The slots of a global batch that one host returns, a `range`."""
    if batch_size < 1 or num_hosts < 1 or batch_size % num_hosts or not 0 <= host_index < num_hosts:
        raise ValueError(
            "The batch must divide into equal shares, one for each host. "
            f"Received: batch_size={batch_size}, num_hosts={num_hosts}, host_index={host_index}"
        )
    share = batch_size // num_hosts
    return range(host_index * share, (host_index + 1) * share)


def host_rows(host_slots, batch_size, mixup_form=""):
    """Returns the slots that a host reads, ascending, and the rows among them of its own share and of the partners."""
    # A slot is mixed with the one before it in the global batch, or with the one as far from the end.
    partner_of = {"roll": lambda slot: (slot - 1) % batch_size, "reverse": lambda slot: batch_size - 1 - slot}
    partners = [partner_of[mixup_form](slot) for slot in host_slots] if mixup_form else []
    slots = sorted({*host_slots, *partners})
    return tuple(slots), np.searchsorted(slots, host_slots), np.searchsorted(slots, partners)


def index_at(position, num_examples, seed):
    """The epoch and the index of the example at a position of the training order, int64 of the same shape."""
    epoch, place = position // num_examples, position % num_examples
    # Reading by a shuffled index instead of a shuffle buffer: any step can be reached at once. The raw op, because
    # `tf.random.experimental.index_shuffle` takes no seed for each index.
    last = tf.constant(num_examples - 1, tf.int64)
    key = shuffle_key(seed, epoch)
    return epoch, tf.raw_ops.RandomIndexShuffle(index=place, seed=key, max_index=last, rounds=_ROUNDS)


def shuffled(values, key):
    """Values `(V,)` in the order of a key that `shuffle_key` gives, `(3,)`."""
    positions = tf.range(tf.size(values, tf.int64), dtype=tf.int64)
    last = tf.maximum(tf.size(values, tf.int64) - 1, 0)
    return tf.gather(values, tf.raw_ops.RandomIndexShuffle(index=positions, seed=key, max_index=last, rounds=_ROUNDS))


def shuffle_key(seed, *numbers):
    """Returns the key of a shuffle, int64 `(..., 3)`: unrelated keys even for small seeds and neighboring epochs."""
    first = splitmix64(tf.constant(seed, tf.uint64), 0)
    for number in numbers:
        first = splitmix64(first, number)
    second, low = splitmix64(first, 0), tf.constant(2**32, tf.uint64)
    return tf.cast(tf.stack([first % low, first // low, second % low], -1), tf.int64)


def splitmix64(state, number):
    """Number `number`, from 0, of the generator splitmix64 from a state: uint64 of any shape."""
    state = state + (tf.cast(number, tf.uint64) + 1) * tf.constant(_STEP, tf.uint64)
    for shift, factor in _FACTORS:
        state = tf.bitwise.bitwise_xor(state, tf.bitwise.right_shift(state, tf.constant(shift, tf.uint64)))
        state *= tf.constant(factor, tf.uint64)
    return state
