"""Which example stands where: arithmetic on positions, slots and hosts.

The training order is one endless sequence of positions. Position `step * batch_size + slot` is a slot of a batch; epoch
e holds the positions from `e * num_examples` on, each example once. A host returns the slots of its `host_slice`, and
reads the slots of their mixing partners too.
"""

import dataclasses

import numpy as np
import tensorflow as tf

FORMS = ("roll", "reverse")

# The constants of splitmix64: what it adds for each number, and the factors of its finalizer.
_STEP, _FACTORS = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
# With the default of 4 rounds and keys of small numbers, most examples of a small epoch stay where they are stored, and
# the orders of neighboring epochs are alike. With 8 rounds and keys that are hashed, no statistic is off chance.
_ROUNDS = 8


def host_slice(batch_size, num_hosts, host_index):
    """The slots of a global batch that one host returns, a `range`.

    Raises:
        ValueError: the batch does not divide among the hosts, or there is no such host.
    """
    if batch_size < 1 or num_hosts < 1 or batch_size % num_hosts or not 0 <= host_index < num_hosts:
        raise ValueError(
            "The batch must divide into equal shares, one for each host. "
            f"Received: batch_size={batch_size}, num_hosts={num_hosts}, host_index={host_index}"
        )
    share = batch_size // num_hosts
    return range(host_index * share, (host_index + 1) * share)


def partner_of(slot, batch_size, form):
    """With which slot of the global batch a slot is mixed: the one before ("roll") or the mirrored one ("reverse")."""
    return (slot - 1) % batch_size if form == "roll" else batch_size - 1 - slot


@dataclasses.dataclass(frozen=True)
class HostBatch:
    """What one host reads of each global batch, and where in it the slots of its share and their partners are.

    Attributes:
        batch_size: slots in the global batch.
        slots: the slots that are read, ascending; a row of the host's batch is a place in this tuple.
        host_rows: the row of each slot of the host's share.
        partner_rows: the row of each of their partners; empty without mixing.
    """

    batch_size: int
    slots: tuple
    host_rows: np.ndarray
    partner_rows: np.ndarray

    @classmethod
    def of(cls, host_slots, batch_size, mixup_form=""):
        """For the slots of a `host_slice`; with mixing, the form says which partners are read too."""
        partners = [partner_of(slot, batch_size, mixup_form) for slot in host_slots] if mixup_form else []
        slots = sorted({*host_slots, *partners})
        return cls(batch_size, tuple(slots), np.searchsorted(slots, host_slots), np.searchsorted(slots, partners))


def index_at(position, num_examples, seed):
    """Which example stands at a position of the training order, counted from the first step.

    Args:
        position: int64, a scalar or `(B,)`.
        num_examples: examples in an epoch.
        seed: the seed of the run, a non-negative int32.

    Returns:
        `(epoch, index)`, int64 of the same shape.
    """
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
    """The key of a shuffle, of an epoch for instance: three numbers in [0, 2^32), int64 `(..., 3)` for integers
    `(...,)`.

    The numbers of splitmix64 for the seed and the others, so that those of small seeds and neighboring epochs
    have nothing in common.
    """
    step, low = tf.constant(_STEP, tf.uint64), tf.constant(2**32, tf.uint64)
    first = _hash(tf.constant(seed, tf.uint64) + step)
    for number in numbers:
        first = _hash(first + (tf.cast(number, tf.uint64) + 1) * step)
    second = _hash(first + step)
    return tf.cast(tf.stack([first % low, first // low, second % low], -1), tf.int64)


def _hash(number):
    """The finalizer of splitmix64, uint64 of any shape."""
    for shift, factor in _FACTORS:
        number = tf.bitwise.bitwise_xor(number, tf.bitwise.right_shift(number, tf.constant(shift, tf.uint64)))
        number *= tf.constant(factor, tf.uint64)
    return number


def eval_rows(num_examples, batch_size, host_slots):
    """How many examples a host scores, and with how many placeholders it fills up its last batch: two ints."""
    whole, rest = divmod(num_examples, batch_size)
    scored = whole * len(host_slots) + sum(slot < rest for slot in host_slots)
    return scored, -(-num_examples // batch_size) * len(host_slots) - scored
