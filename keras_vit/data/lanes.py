"""The order of a source that is read in order, from which every host reads its own part alone.

    slots of a batch     0 ... c-1 | c ... 2c-1 | ...     lanes of c = batch_size / lanes slots each
    an epoch             the shards, in an order drawn from (seed, epoch), are a line of all examples; it is cut into
                         pieces, one for each lane, as long as the number of slots that the lane has in this epoch
    a lane               its pieces, epoch after epoch, each of them shuffled block by block

Nothing in it depends on the hosts. Those slots of a batch that a host returns are those of a few lanes, and so it opens
the shards of these lanes alone, of all lanes at the same time. Where a lane stands at a step is arithmetic on the
lengths of the shards: shards before that place are not opened, and of the first one the records before it are skipped.
"""

import numpy as np
import tensorflow as tf

from keras_vit.data import order
from keras_vit.data.failures import FINE
from keras_vit.data.sources import Source

_MOST = 64  # lanes, each of which reads a file
_SHARDS_A_LANE = 2  # at least: a lane reads the beginning of a shard in vain whose middle it starts at
_FOREVER = 2**62


def evaluation_order(source: Source, batch_size: int) -> np.ndarray:
    """The index of the example at each position of `data.eval_batches`: int64 `(num_examples,)`."""
    if source.shards is None:
        return np.arange(source.num_examples)
    return Lanes(source, batch_size).evaluation_order()


class Lanes:
    """The lanes of a source.

    Args:
        source: a `Source` with `shards`.
        batch_size: examples in a batch, over all hosts.
        seed: of the run; None for the order of evaluation, which is the same line without any shuffling, once.
        shuffle_buffer: examples that are shuffled together, over all lanes.

    Attributes:
        count: how many they are: the largest divisor of the batch that leaves each of them two shards or more.
        size: slots of a batch that each has.
    """

    def __init__(self, source, batch_size, seed=None, shuffle_buffer=1):
        self._shards, self._n = source.shards, source.num_examples
        self._batch_size, self._seed = batch_size, seed
        most = min(_MOST, max(1, len(self._shards.lengths) // _SHARDS_A_LANE))
        self.count = max(count for count in range(1, most + 1) if batch_size % count == 0)
        self.size = batch_size // self.count
        # One block is handed out while the next one is read.
        self._block = max(1, shuffle_buffer // (2 * self.count))

    def steps(self, slots, first_step):
        """An endless dataset of `(numbers, records)` of the slots of a batch, for each step from `first_step` on; in
        evaluation it ends with the last batch.

        Args:
            slots: ascending integers `(M,)` in [0, batch_size).
            first_step: int or int64 tensor.

        Returns:
            A dataset of int64 `(M,)` and string `(M,)`. A number is `epoch * num_examples + index`; in evaluation it is
            `FINE` behind the last example.
        """
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
        """See the function of this name."""
        steps = -(-self._n // self._batch_size)
        indices = np.full((steps, self.count, self.size), -1)
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
        # What the lane has given of this epoch: whole blocks, which are not read, and some of the block it stands in.
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
        behind = tf.data.Dataset.from_tensors((tf.constant(FINE, tf.int64), "")).repeat()
        steps = -(-self._n // self._batch_size)
        return self._records(tf.constant(0, tf.int64), start, stop).concatenate(behind).batch(self.size).take(steps)
