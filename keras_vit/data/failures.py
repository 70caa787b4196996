"""Which examples of a pipeline could not be read: written where batches are made, read where they are trained on; and
waiting before what failed is tried again."""

import collections

import numpy as np
import tensorflow as tf

FINE = -1  # what a row of a batch has instead of the index of an example that failed
RETRY_SECONDS = 0.2  # before something that cannot be read is read for the last time

_PIPELINES = 64  # whose failures are remembered; one for each host's share of each evaluation


class FailureLog:
    """For each position of a batch whose example failed, the index of that example in its source.

    An index that is known only where the records are read comes with its batch this way, and so does the difference
    between an example that failed and one that has no right answer, which both have weight 0.
    """

    def __init__(self):
        self._tables = collections.deque(maxlen=_PIPELINES)

    def recorder(self, batch_size, host_slots):
        """A function `(step, failed)` for `tf.data`, which notes the rows of a batch that failed."""
        # Of the pipeline, because that may run on another machine than this object.
        table = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.int64, default_value=FINE, experimental_is_anonymous=True
        )
        self._tables.append(table)
        slots = tf.constant(list(host_slots), tf.int64)

        def record(step, failed):
            rows = tf.reshape(tf.where(failed != FINE), [-1])
            return table.insert(step * batch_size + tf.gather(slots, rows), tf.gather(failed, rows))

        return record

    def pop(self, positions):
        """The indices of the examples at some positions, int64 `(P,)`, or `FINE`; they are forgotten."""
        failed = np.full(len(positions), FINE)
        keys = tf.constant(positions, tf.int64)
        for table in self._tables:
            values = table.lookup(keys).numpy()
            failed = np.where(values == FINE, failed, values)
            table.remove(keys)
        return failed


def after_a_while(dataset):
    """The same dataset after `RETRY_SECONDS`."""
    specs = tf.nest.flatten(dataset.element_spec)
    asleep = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        sleep_microseconds=tf.constant(int(1e6 * RETRY_SECONDS), tf.int64),
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
    )
    return tf.data.experimental.from_variant(asleep, dataset.element_spec)
