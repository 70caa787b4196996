"""Records that are read from the beginning of their files: remote ones, which are too slow to be read one by one.

    slots of a batch     0 ... c-1 | c ... 2c-1 | ...     lanes of c = batch_size / lanes slots each
    an epoch             the shards, in an order drawn from (seed, epoch), form one line of all examples; each lane has
                         a piece of it, as long as the number of slots the lane has in this epoch
    a lane               its pieces, epoch after epoch, each of them shuffled block by block

None of this depends on the hosts. A host opens only the shards of its lanes; a lane's position at a step is arithmetic.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit.data import order

NO_EXAMPLE = -1  # the number of a row of a batch that is padding

_MAX_LANES = 64  # each of them reads a file
_SHARDS_PER_LANE = 2  # minimum; a lane that starts in the middle of a shard wastes the bytes it skips
_FOREVER = 2**62
_BUFFER = 4 * 2**20  # bytes read ahead of a remote file, many records, so that latency counts once for all of them


@dataclasses.dataclass(frozen=True)
class Shards:
    """Files of records that can only be read in order; an index counts the records of all shards in turn."""

    lengths: np.ndarray  # int64 `(S,)`, records of each shard
    open: Callable  # `open(shard, skip)` returns a dataset of the shard's records from number `skip` on
    parse: Callable  # from a record to an example, as `Source.read` returns it

    @property
    def starts(self):
        """int64 `(S,)`: the index of the first record of each shard."""
        return np.cumsum([0, *self.lengths[:-1]]).astype(np.int64)

    @property
    def num_examples(self):
        return int(np.sum(self.lengths))

    def namer(self, files, skips=None):
        """A function from an index to its file and record; `skips` records of each file are before its shard."""

        def name_of(index):
            # Shards without records begin where the next one does.
            shard = int(np.searchsorted(self.starts, index, side="right")) - 1
            return f"{files[shard]} record {index - self.starts[shard] + (skips[shard] if skips else 0)}"

        return name_of

    def read(self, shard, skip, take):
        """A dataset of `take` pairs `(index, record)` of a shard, empty records from one that cannot be read on."""
        empty = tf.data.Dataset.from_tensors("").repeat(take)
        records = self.open(shard, skip).ignore_errors().take(take).concatenate(empty).take(take)
        return records.enumerate(tf.constant(self.starts)[shard] + skip)

    def in_order(self):
        """All pairs `(index, record)`, shard after shard."""
        shards = tf.data.Dataset.from_tensor_slices((np.arange(len(self.lengths)), np.int64(self.lengths)))
        return shards.flat_map(lambda shard, length: self.read(shard, tf.constant(0, tf.int64), length))


class Lanes:
    """The lanes of some `Shards`, each of `size` slots of a batch; without a seed in evaluation order, once."""

    def __init__(self, shards, batch_size, seed=None, shuffle_buffer=1):
        self._shards, self._n, self._batch_size, self._seed = shards, shards.num_examples, batch_size, seed
        # The largest divisor of the batch size that leaves each lane enough shards.
        most = min(_MAX_LANES, max(1, len(shards.lengths) // _SHARDS_PER_LANE))
        self.count = max(count for count in range(1, most + 1) if batch_size % count == 0)
        self.size = batch_size // self.count
        # One block is handed out while the next one is read.
        self._block = max(1, shuffle_buffer // (2 * self.count))

    def steps(self, slots, first_step):
        """Returns a dataset of `(numbers, records)` of some slots of the batch, for each step from `first_step` on."""
        lanes = sorted({slot // self.size for slot in slots})
        place = np.searchsorted(lanes, np.array(slots) // self.size) * self.size + np.array(slots) % self.size
        first_step = tf.cast(first_step, tf.int64)
        read = self._evaluation_lane if self._seed is None else lambda lane: self._training_lane(lane, first_step)
        chunks = tf.data.Dataset.from_tensor_slices(np.int64(lanes)).interleave(
            read, cycle_length=len(lanes), block_length=1, num_parallel_calls=len(lanes), deterministic=True
        )

        def rows(*parts):
            return tuple(tf.gather(tf.reshape(part, [len(lanes) * self.size]), place) for part in parts)

        return chunks.batch(len(lanes), drop_remainder=True).map(rows)

    def evaluation_order(self):
        """The index of the example at each position of an evaluation: int64 `(num_examples,)`."""
        indices = np.full((-(-self._n // self._batch_size), self.count, self.size), -1)
        for lane in range(self.count):
            start, stop = (int(edge) for edge in self._piece(0, lane))
            indices[:, lane].flat[: stop - start] = np.arange(start, stop)
        return indices.ravel()[: self._n]

    def _before(self, position, lane):
        """How many slots of the lanes before a lane are before a position of the order; int or int64 tensors."""
        batches, slot = position // self._batch_size, position % self._batch_size
        return batches * lane * self.size + tf.minimum(slot, lane * self.size)

    def _piece(self, epoch, lane):
        """Where in the line of an epoch the piece of a lane begins and ends."""
        first, last = epoch * self._n, (epoch + 1) * self._n
        return tuple(self._before(last, edge) - self._before(first, edge) for edge in (lane, lane + 1))

    def _records(self, epoch, start, stop):
        """`(index, record)` of a part of the line of an epoch."""
        lengths = tf.constant(self._shards.lengths, tf.int64)
        shards = tf.range(len(self._shards.lengths), dtype=tf.int64)
        if self._seed is not None:
            shards = order.shuffled(shards, order.shuffle_key(self._seed, epoch))
        lengths = tf.gather(lengths, shards)
        begins = tf.cumsum(lengths, exclusive=True)
        skips, ends = (tf.clip_by_value(edge - begins, 0, lengths) for edge in (start, stop))
        parts = tuple(tf.boolean_mask(of_shard, ends > skips) for of_shard in (shards, skips, ends - skips))
        return tf.data.Dataset.from_tensor_slices(parts).flat_map(self._shards.read)

    def _training_lane(self, lane, first_step):
        """Chunks of `(numbers, records)` of the slots of a lane, for each step from the first one on."""
        position = first_step * self._batch_size + lane * self.size
        first_epoch = position // self._n
        # The examples of this epoch that the lane has given: whole blocks, which are not read, and part of a block.
        edges = [self._before(position, edge) - self._before(first_epoch * self._n, edge) for edge in (lane, lane + 1)]
        skipped_blocks, skipped = (edges[1] - edges[0]) // self._block, (edges[1] - edges[0]) % self._block

        def blocks(epoch):
            resumed = tf.cast(epoch == first_epoch, tf.int64)
            start, stop = self._piece(epoch, lane)
            records = self._records(epoch, start + resumed * skipped_blocks * self._block, stop).batch(self._block)

            def shuffle(block, row):
                indices, records = row
                permutation = tf.range(tf.size(indices, tf.int64), dtype=tf.int64)
                permutation = order.shuffled(permutation, order.shuffle_key(self._seed, epoch, lane, block))
                permutation = permutation[tf.where(block == skipped_blocks, resumed * skipped, 0) :]
                return epoch * self._n + tf.gather(indices, permutation), tf.gather(records, permutation)

            return records.enumerate(resumed * skipped_blocks).map(shuffle)

        # The next block is read while this one is handed out.
        endless = tf.data.Dataset.range(first_epoch, _FOREVER).flat_map(blocks).prefetch(1)
        return endless.rebatch(self.size)

    def _evaluation_lane(self, lane):
        start, stop = self._piece(tf.constant(0, tf.int64), lane)
        behind = tf.data.Dataset.from_tensors((tf.constant(NO_EXAMPLE, tf.int64), "")).repeat()
        steps = -(-self._n // self._batch_size)
        return self._records(tf.constant(0, tf.int64), start, stop).concatenate(behind).batch(self.size).take(steps)


def open_tfrecords(files, skips=None):
    """The `open` of TFRecord files, whose first records may not belong to their shard: `skips[shard]` of them."""
    names, skips = tf.constant(files), tf.constant(skips or [0] * len(files), tf.int64)

    def first_record(name):
        return tf.data.TFRecordDataset(name, buffer_size=0).take(1).get_single_element()

    def open_file(shard, skip):
        records = tf.data.TFRecordDataset(names[shard], buffer_size=_BUFFER).skip(skips[shard] + skip)
        # A file that cannot be opened fails without end, and `ignore_errors` would wait for that: try it before.
        return tf.data.Dataset.from_tensors(names[shard]).map(first_record).ignore_errors().flat_map(lambda _: records)

    return open_file


def count_records(file):
    """The number of records of a TFRecord file, which is read whole for it."""
    try:
        return sum(len(records) for records in tf.data.TFRecordDataset(file, buffer_size=_BUFFER).batch(64))
    except tf.errors.DataLossError:
        raise ValueError(f"A TFRecord file must be whole and uncompressed. Received: {file!r}") from None
