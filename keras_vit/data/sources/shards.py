"""Readers of record files (shards). They read sequentially, because random access to remote files
is too slow.

- Batch: each reader fills the same number of consecutive slots (indices into the batch).
- Epoch: the shards form one sequence of all examples. Training draws the order of the shards from
  (seed, epoch). Each reader reads a contiguous part of this sequence, with one example for each
  slot that it fills in the epoch.
- Reader: in training, a reader shuffles its part of an epoch block by block.

The order does not depend on the number of hosts. Each host opens only the shards that its readers
need. The position of a reader is computed from the step, so that a run can resume at any step.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit.data import order

NO_EXAMPLE = -1  # marks a padding row instead of an example number

_MAX_READERS = 64  # each reader keeps one file open
# The minimum if there are several readers. A reader that starts within a shard wastes the skipped
# bytes.
_SHARDS_PER_READER = 2
_FOREVER = 2**62


@dataclasses.dataclass(frozen=True)
class Shards:
    """Record files that are read sequentially. Example indices continue from one shard to the
    next."""

    lengths: np.ndarray  # int64 `(S,)`: the number of records of each shard
    # `open(shard, skip)` returns a dataset of a shard's records, starting at record `skip`.
    open: Callable
    parse: Callable  # maps a record to an example, as `Source.read` returns it

    @property
    def starts(self):
        """The index of the first record of each shard: int64 `(S,)`."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def num_examples(self):
        return int(np.sum(self.lengths))

    def read(self, shard, skip, take):
        """Returns a dataset of `take` pairs `(index, record)` of a shard, starting at record
        `skip`.

        Records after an error are empty.
        """
        empty = tf.data.Dataset.from_tensors("").repeat(take)
        records = self.open(shard, skip).ignore_errors().take(take).concatenate(empty).take(take)
        return records.enumerate(tf.constant(self.starts)[shard] + skip)

    def in_order(self):
        """Returns a dataset of all pairs `(index, record)`, shard by shard."""
        parts = (np.arange(len(self.lengths)), np.zeros_like(self.lengths), self.lengths)
        return tf.data.Dataset.from_tensor_slices(parts).flat_map(self.read)


class ShardReaders:
    """Reads `Shards` with `count` readers, each of which fills `size` slots of a batch.

    With a seed, the readers read endlessly in training order. Without a seed, they read each
    example once, in evaluation order.
    """

    def __init__(self, shards, batch_size, seed=None, shuffle_buffer=1):
        self._shards = shards
        self._n = shards.num_examples
        self._batch_size = batch_size
        self._seed = seed
        # Use the largest number of readers that divides the batch size and leaves each reader
        # enough shards.
        most = min(_MAX_READERS, max(1, len(shards.lengths) // _SHARDS_PER_READER))
        self.count = max(count for count in range(1, most + 1) if batch_size % count == 0)
        self.size = batch_size // self.count
        # Each reader has two blocks in memory: one is being returned, and one is being read.
        self._block = max(1, shuffle_buffer // (2 * self.count))

    def steps(self, slots, first_step):
        """Returns a dataset that contains, for each step, the `(numbers, records)` of these
        slots."""
        slots = np.array(slots)
        readers, number_of_slot = np.unique(slots // self.size, return_inverse=True)
        # Index of each slot in the rows of these readers, one reader after the other.
        place = number_of_slot * self.size + slots % self.size
        first_step = tf.cast(first_step, tf.int64)

        def read(reader):
            if self._seed is None:
                return self._evaluation_rows(reader)
            return self._training_rows(reader, first_step)

        chunks = tf.data.Dataset.from_tensor_slices(np.int64(readers)).interleave(
            read,
            cycle_length=len(readers),
            block_length=1,
            num_parallel_calls=len(readers),
            deterministic=True,
        )

        def rows(*parts):
            return tuple(
                tf.gather(tf.reshape(part, [len(readers) * self.size]), place) for part in parts
            )

        return chunks.batch(len(readers), drop_remainder=True).map(rows)

    def evaluation_order(self):
        """Returns the index of the example at each position of an evaluation: int64
        `(num_examples,)`."""
        indices = np.full((-(-self._n // self._batch_size), self.count, self.size), -1)
        for reader in range(self.count):
            start, stop = (int(edge) for edge in self._part(0, self._n, reader))
            indices[:, reader].flat[: stop - start] = np.arange(start, stop)
        return indices.ravel()[: self._n]

    def _before(self, position, reader):
        """Counts the positions before `position` that belong to readers with a smaller index than
        `reader`."""
        batches = position // self._batch_size
        slot = position % self._batch_size
        return batches * reader * self.size + tf.minimum(reader * self.size, slot)

    def _part(self, first, last, reader):
        """Returns the start and end of a reader's part in the sequence of examples for positions
        `first` to `last`."""
        return tuple(
            self._before(last, edge) - self._before(first, edge) for edge in (reader, reader + 1)
        )

    def _records(self, epoch, start, stop):
        """Returns a dataset of `(index, record)` from `start` to `stop` in the sequence of an
        epoch."""
        shards = tf.range(len(self._shards.lengths), dtype=tf.int64)
        if self._seed is not None:
            shards = order.permutation(
                tf.size(shards, tf.int64), order.shuffle_key(self._seed, epoch)
            )
        lengths = tf.gather(tf.constant(self._shards.lengths, tf.int64), shards)
        begins = tf.cumsum(lengths, exclusive=True)
        skips, ends = (tf.clip_by_value(edge - begins, 0, lengths) for edge in (start, stop))
        parts = tuple(
            tf.boolean_mask(of_shard, ends > skips) for of_shard in (shards, skips, ends - skips)
        )
        return tf.data.Dataset.from_tensor_slices(parts).flat_map(self._shards.read)

    def _training_rows(self, reader, first_step):
        """Returns an endless dataset with `(numbers, records)` of one reader's slots for each
        step."""
        position = first_step * self._batch_size + reader * self.size
        first_epoch = position // self._n
        # The reader has already returned `done` examples of this epoch: whole blocks, which are
        # skipped, and part of a block, which is read again.
        begin, end = self._part(first_epoch * self._n, position, reader)
        done = end - begin
        skipped_blocks = done // self._block
        skipped = done % self._block

        def blocks(epoch):
            resumed = tf.cast(epoch == first_epoch, tf.int64)
            start, stop = self._part(epoch * self._n, (epoch + 1) * self._n, reader)
            records = self._records(
                epoch, start + resumed * skipped_blocks * self._block, stop
            ).batch(self._block)

            def shuffle(block, row):
                indices, stored = row
                key = order.shuffle_key(self._seed, epoch, reader, block)
                permutation = order.permutation(tf.size(indices, tf.int64), key)
                permutation = permutation[tf.where(block == skipped_blocks, resumed * skipped, 0) :]
                numbers = epoch * self._n + tf.gather(indices, permutation)
                return numbers, tf.gather(stored, permutation)

            return records.enumerate(resumed * skipped_blocks).map(shuffle)

        # Read the next block while this one is returned.
        endless = tf.data.Dataset.range(first_epoch, _FOREVER).flat_map(blocks).prefetch(1)
        return endless.rebatch(self.size)

    def _evaluation_rows(self, reader):
        start, stop = self._part(0, self._n, reader)
        padding = tf.data.Dataset.from_tensors((tf.constant(NO_EXAMPLE, tf.int64), "")).repeat()
        steps = -(-self._n // self._batch_size)
        return self._records(0, start, stop).concatenate(padding).batch(self.size).take(steps)
