"""Records that are read from the beginning of their files: what is remote, and too slow to be read one by one."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit.data.failures import after_a_while

# Bytes that are read ahead of a remote file: many records, so that its latency counts once for all of them.
_BUFFER = 4 * 2**20
_CHUNK = 16  # records that are handled together, for speed


@dataclasses.dataclass(frozen=True)
class Shards:
    """Files of records, of which only the beginning can be found at once.

    An example's index counts the records of all shards, one shard after the other.

    Attributes:
        lengths: int64 `(S,)`: how many records each shard has.
        open: `open(shard, skip)`, two int64 scalar tensors, to a `tf.data.Dataset` of its records from number `skip`
            on, scalar strings, which ends at one that cannot be read.
        parse: from a record to an example, as `Source.read` gives it.
    """

    lengths: np.ndarray
    open: Callable
    parse: Callable

    @property
    def starts(self):
        """int64 `(S,)`: the index of the first record of each shard."""
        return np.cumsum([0, *self.lengths[:-1]]).astype(np.int64)

    @property
    def num_examples(self):
        return int(np.sum(self.lengths))

    def namer(self, files, skips=None):
        """A function from an index to the file of its shard and the number of the record in it, from 0.

        Args:
            files: the file of each shard.
            skips: how many records of each file are before its shard; None for none.
        """

        def name_of(index):
            # Shards without records begin where the next one does.
            shard = int(np.searchsorted(self.starts, index, side="right")) - 1
            return f"{files[shard]} record {index - self.starts[shard] + (skips[shard] if skips else 0)}"

        return name_of

    def read(self, shard, skip, take):
        """Some records of a shard: a dataset of `take` pairs `(index, record)`.

        Where reading fails it is tried once more, after a while, from there on. What cannot be read then is an empty
        record in its own place, so that no other one moves. After a damaged record nothing of a file can be found.
        """

        def attempt(_):
            return self.open(shard, skip).ignore_errors().take(take)

        def missing(due, chunk):
            """Those of a chunk that were not read before, and the number that is due next."""
            numbers, records = chunk
            new = tf.maximum(due - numbers[0], 0)
            return tf.maximum(due, numbers[-1] + 1), (start + numbers[new:], records[new:])

        start, once = tf.constant(self.starts)[shard], tf.data.Dataset.from_tensors(0)
        empty = tf.data.Dataset.from_tensors("").repeat(take)
        chunks = [
            records.enumerate(skip).batch(_CHUNK)
            for records in (once.flat_map(attempt), after_a_while(once).flat_map(attempt), empty)
        ]
        records = chunks[0].concatenate(chunks[1]).concatenate(chunks[2]).scan(skip, missing).unbatch()
        # `take` asks for nothing after the last one: where all goes well there is no second attempt.
        return records.take(take)

    def records(self, indices):
        """Some records, scalar strings, empty where they cannot be read.

        Args:
            indices: of the records, ascending, int64 `(N,)`. A shard is read from the first of them to the last.
        """
        shards = np.searchsorted(self.starts, indices, side="right") - 1
        for shard in np.unique(shards):
            chosen = tf.constant(indices[shards == shard], tf.int64)
            skip, take = chosen[0] - self.starts[shard], chosen[-1] - chosen[0] + 1
            rows = self.read(tf.constant(shard, tf.int64), skip, take)
            for _, record in rows.filter(lambda index, _, chosen=chosen: tf.reduce_any(index == chosen)):
                yield record

    def in_order(self):
        """All pairs `(index, record)`, shard after shard."""
        shards = tf.data.Dataset.from_tensor_slices((np.arange(len(self.lengths)), np.int64(self.lengths)))
        return shards.flat_map(lambda shard, length: self.read(shard, tf.constant(0, tf.int64), length))


def open_tfrecords(files, skips=None):
    """The `open` of TFRecord files, whose first records may not belong to their shard: `skips[shard]` of them."""
    names, skips = tf.constant(files), tf.constant(skips or [0] * len(files), tf.int64)

    def open_file(shard, skip):
        # What cannot be opened fails without end, and `ignore_errors` would wait for that: it is tried before.
        records = lambda _: _tfrecords(names[shard]).skip(skips[shard] + skip)  # noqa: E731
        return tf.data.Dataset.from_tensors(names[shard]).map(_first_record).ignore_errors().flat_map(records)

    return open_file


def count_records(file):
    """How many records of a TFRecord file can be found, and whether these are all; reads the whole file.

    Raises:
        ValueError: it cannot be read, which says nothing about its records.
    """
    try:
        return _count(_tfrecords(file)), True
    except tf.errors.DataLossError:
        with tf.io.gfile.GFile(file, "rb") as opened:
            if opened.read(2) in (b"\x1f\x8b", b"\x78\x9c"):
                raise ValueError(
                    f"TFRecords must not be compressed; uncompress them, as with gunzip. Received: {file!r}"
                ) from None
        opened = tf.data.Dataset.from_tensors(file).map(_first_record).ignore_errors()
        return _count(opened.flat_map(lambda _: _tfrecords(file)).ignore_errors()), False
    except tf.errors.OpError as error:
        raise ValueError(f"The records of a file cannot be counted ({error.message}). Received: {file!r}") from None


def _count(records):
    return sum(int(size) for size in records.batch(_CHUNK).map(tf.size))


def _tfrecords(file, buffer_size=_BUFFER):
    variant = tf.raw_ops.TFRecordDataset(
        filenames=tf.reshape(file, [1]), compression_type="", buffer_size=tf.constant(buffer_size, tf.int64)
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def _first_record(file):
    return _tfrecords(file, buffer_size=0).take(1).get_single_element()
