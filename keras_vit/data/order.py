"""Computes the order of examples, and the slots of a batch that each host reads.

A slot is an index into a global batch, and a position is an index into the endless training order.
Slot `slot` of step `step` has position `step * batch_size + slot`, and epoch `e` starts at position
`e * num_examples`.
"""

import numpy as np
import tensorflow as tf

FORMS = ("roll", "reverse")

# Constants of splitmix64: the increment, and the shifts and factors of its finalizer.
_STEP = 0x9E3779B97F4A7C15
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
# With TensorFlow's default of 4 rounds and with small integers as keys, short epochs are hardly
# shuffled, and consecutive epochs are similar. With 8 rounds and hashed keys, our statistical tests
# cannot tell the order from a random one.
_ROUNDS = 8


def host_slice(batch_size, num_hosts, host_index):
    """Returns the slots of a global batch that belong to one host, as a `range`."""
    if batch_size < 1 or num_hosts < 1 or batch_size % num_hosts or not 0 <= host_index < num_hosts:
        raise ValueError(
            "`batch_size` must be a positive multiple of `num_hosts`, and `host_index` from 0 to "
            f"`num_hosts` - 1. Received: batch_size={batch_size}, num_hosts={num_hosts}, "
            f"host_index={host_index}"
        )
    share = batch_size // num_hosts
    return range(host_index * share, (host_index + 1) * share)


def host_rows(host_slots, batch_size, mixup_form=""):
    """Returns `(slots, own, partners)` of a host.

    `slots` are the sorted slots that the host reads; `own` and `partners` are the indices in
    `slots` of the host's own slots and of their mixup partners.
    """
    # A slot's partner is the previous slot, or the slot at the same distance from the end of the
    # global batch.
    partners = {
        "": [],
        "roll": [(slot - 1) % batch_size for slot in host_slots],
        "reverse": [batch_size - 1 - slot for slot in host_slots],
    }[mixup_form]
    slots = sorted({*host_slots, *partners})
    return tuple(slots), np.searchsorted(slots, host_slots), np.searchsorted(slots, partners)


def index_at(position, num_examples, seed):
    """Returns the epoch and the index of the example at each position of the training order, both
    int64."""
    epoch = position // num_examples
    place = position % num_examples
    # Shuffle indices, because a shuffle buffer cannot resume at an arbitrary step.
    size = tf.constant(num_examples, tf.int64)
    return epoch, _shuffled(place, size, shuffle_key(seed, epoch))


def balanced_index_at(position, members, seed):
    """Returns the repetition and the index of the example at each position of an order in which
    all classes are equally frequent, both int64.

    `members` lists the indices of the examples of each class, which has at least one. Any
    consecutive positions, as many as there are classes, contain each class once, in an order that
    depends on the seed. All examples of a class are seen once before one is repeated.
    """
    counts = tf.constant([len(indices) for indices in members], tf.int64)
    starts = tf.cumsum(counts, exclusive=True)
    round_, label = index_at(position, len(members), seed)
    count = tf.gather(counts, label)
    repetition = round_ // count
    place = _shuffled(round_ % count, count, shuffle_key(seed, repetition, label))
    every = tf.constant(np.concatenate(members), tf.int64)
    return repetition, tf.gather(every, tf.gather(starts, label) + place)


def permutation(size, key):
    """Returns the int64 numbers from 0 to `size` - 1 in an order determined by a key `(3,)` from
    `shuffle_key`."""
    return _shuffled(tf.range(size), size, key)


def _shuffled(index, size, key):
    """Returns the shuffled number at an index, from 0 to `size` - 1, with a key for each index."""
    # Use the raw op, because `tf.random.experimental.index_shuffle` has one seed for all indices.
    return tf.raw_ops.RandomIndexShuffle(
        index=index, seed=key, max_index=tf.maximum(size - 1, 0), rounds=_ROUNDS
    )


def shuffle_key(seed, *numbers):
    """Returns a key for shuffling, int64 `(..., 3)`; the keys of similar seeds or epochs are
    unrelated."""
    first = splitmix64(tf.constant(seed, tf.uint64), 0)
    for number in numbers:
        first = splitmix64(first, number)
    second = splitmix64(first, 0)
    low = tf.constant(2**32, tf.uint64)
    return tf.cast(tf.stack([first % low, first // low, second % low], -1), tf.int64)


def splitmix64(state, number):
    """Returns output `number` (from 0) of a splitmix64 generator that starts at `state`: uint64 of
    any shape."""
    state = state + (tf.cast(number, tf.uint64) + 1) * tf.constant(_STEP, tf.uint64)
    for shift, factor in _FACTORS:
        state = tf.bitwise.bitwise_xor(
            state, tf.bitwise.right_shift(state, tf.constant(shift, tf.uint64))
        )
        state *= tf.constant(factor, tf.uint64)
    return state
