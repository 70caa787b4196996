"""From a source to batches, in an order that is a function of the step alone.

    position = step * batch_size + slot, of which a host reads its own slots and those of their mixing partners

    step:             0                               1
    slot:        0  1 | 2  3                     0  1 | 2  3                   (4 slots, two hosts)

    access by    position -> index (order.index_at)   \\
    index                                              rows of a batch -> read, train_example -> weights, mixing
    read in      records of this host's lanes         /                                               -> prefetch
    order        (lanes.py), shuffled

A batch is made in one piece. Where a row of it fails, it is made again row by row, reading what cannot be read once
more after a while; so a batch with a bad file costs about twice the time of another. What cannot be read then becomes a
placeholder of weight 0 in its own slot and moves no other example. With tf.data service, everything before `prefetch`
happens on other machines.
"""

import os
from typing import Any

import tensorflow as tf

from keras_vit.data import examples, order
from keras_vit.data.failures import FINE, FailureLog, after_a_while
from keras_vit.data.lanes import Lanes
from keras_vit.data.options import Options
from keras_vit.data.service import distribute
from keras_vit.data.sources import Source

_BATCHES_AT_A_TIME = 2  # so that threads need not wait for the last row of a batch
_RETRIES_AT_A_TIME = 32


def train_batches(
    source: Source,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    num_hosts: int = 1,
    host_index: int = 0,
    options: Options | None = None,
    failures: FailureLog | None = None,
    **fields: Any,
) -> tf.data.Dataset:
    """An endless dataset of training batches.

    Everything random depends on (seed, epoch, example) only, or for mixing on (seed, step), so a pipeline that starts
    at `start_step` returns exactly what an uninterrupted one returns from there on, whatever the number of hosts,
    threads and replicas. An epoch holds every example once; a batch may span two epochs.

    A source with access by index starts anywhere at once. Of any other, see `lanes.py`, a host opens the shards of its
    own part of the batch alone, starts in the middle of some of them, and shuffles through `shuffle_buffer` examples.

    Args:
        source: a `Source`.
        batch_size: examples in a batch, over all hosts and replicas.
        seed: a non-negative int32.
        start_step: the first step of the dataset.
        num_hosts: into how many equal shares each batch is divided, in order.
        host_index: which share this dataset holds, from 0.
        options: `Options` that are resolved for the source, instead of their fields.
        failures: the `FailureLog` to note examples in that fail, if any.
        **fields: fields of `Options`.

    Returns:
        A `tf.data.Dataset` of `(images, labels, weights)`, B examples each, `batch_size / num_hosts`: float32 `(B, H,
        W, C)`, in [-1, 1] unless `mean` and `std` say otherwise; float32 `(B, classes)`, rows that sum to 1; and
        float32 `(B,)`, 1, or 0 for an example that cannot be read, whose image and label are 0. Shapes are static.

    Raises:
        ValueError: an option is out of range, or the batch does not divide among the hosts.
    """
    options = options or Options(**fields).resolve(source)
    if not 0 <= seed < 2**31 or start_step < 0:
        raise ValueError(f"Seed and step must be int32, 0 or more. Received: seed={seed}, start_step={start_step}")
    mixing = bool(options.mixup_alpha or options.cutmix_alpha)
    n = source.num_examples
    host_slots = order.host_slice(batch_size, num_hosts, host_index)
    host_batch = order.HostBatch.of(host_slots, batch_size, options.mixup_form if mixing else "")
    size = len(host_batch.slots)

    def decode(number, record):
        key = tf.stack([tf.constant(seed, tf.int64), number])
        return examples.train_example(record, key, source, options)

    def rows_by_index(first, stride):
        slots = tf.constant(host_batch.slots, tf.int64)

        def rows(step):
            epoch, index = order.index_at(step * batch_size + slots, n, seed)
            return tf.data.Dataset.from_tensor_slices((epoch * n + index, index))

        return tf.data.Dataset.counter(first, stride).map(lambda step: (step, rows(step)))

    def rows_in_order(first, stride):
        lanes = Lanes(source, batch_size, seed, options.shuffle_buffer)
        rows = lanes.steps(host_batch.slots, first).shard(stride, 0)
        return tf.data.Dataset.zip(tf.data.Dataset.counter(first, stride), rows.map(_rows_of))

    def batches(first, stride):
        rows = (rows_in_order if source.read is None else rows_by_index)(first, stride)

        def make(step, rows):
            images, labels, failed = _make_batch(rows, source, decode, _placeholder(source, options), size, options)
            batch = examples.with_weights(images, labels, options.label_smoothing)
            if mixing:
                key = tf.stack([tf.constant(seed, tf.int64), step])
                batch = examples.mix_batch(*batch, host_batch.host_rows, host_batch.partner_rows, key, options)
                failed = tf.gather(failed, host_batch.host_rows)
            return step, (batch, failed)

        return rows.map(make, num_parallel_calls=_BATCHES_AT_A_TIME, deterministic=True)

    if options.service:
        result = distribute(batches, start_step, options.service)
    else:
        result = batches(start_step, 1)
    return _finished(result, batch_size, host_slots, options, failures)


def eval_batches(
    source: Source,
    *,
    batch_size: int,
    num_hosts: int = 1,
    host_index: int = 0,
    options: Options | None = None,
    failures: FailureLog | None = None,
    **fields: Any,
) -> tf.data.Dataset:
    """A dataset that holds every example once: in order, or of a source without access by index in that of
    `evaluation_order`.

    Args:
        source: a `Source`.
        batch_size: examples in a batch, over all hosts and replicas.
        num_hosts: into how many equal shares each batch is divided, in order.
        host_index: which share this dataset holds, from 0.
        options: `Options` that are resolved for the source, instead of their fields.
        failures: the `FailureLog` to note examples in that fail, if any.
        **fields: fields of `Options`.

    Returns:
        A `tf.data.Dataset` of `(images, labels, weights)` as in training. A weight of 0 marks what only fills up the
        last batch, what cannot be read, and what has no right answer (a row of zeros). All hosts have the same number
        of batches.

    Raises:
        ValueError: an option is out of range, or the batch does not divide among the hosts.
    """
    options = options or Options(**fields).resolve(source)
    host_slots = order.host_slice(batch_size, num_hosts, host_index)
    n, size = source.num_examples, len(host_slots)
    steps = tf.data.Dataset.range(-(-n // batch_size))

    def decode(number, record):  # nothing here is random
        return examples.eval_example(record, source, options)

    if source.read is None:
        rows = Lanes(source, batch_size).steps(host_slots, 0)
        batches = tf.data.Dataset.zip(steps, rows.map(_rows_of))
    else:

        def rows(step):
            index = step * batch_size + tf.range(host_slots.start, host_slots.stop, dtype=tf.int64)
            index = index[index < n]
            return tf.data.Dataset.from_tensor_slices((index, index))

        batches = steps.map(lambda step: (step, rows(step)))

    def make(step, rows):
        images, labels, failed = _make_batch(rows, source, decode, _placeholder(source, options), size, options)
        return step, (examples.with_weights(images, labels), failed)

    batches = batches.map(make, num_parallel_calls=_BATCHES_AT_A_TIME, deterministic=True)
    return _finished(batches, batch_size, host_slots, options, failures)


def _make_batch(rows, source, decode, placeholder, size, options):
    """One batch of rows, with a placeholder for each that fails or is not there.

    Args:
        rows: a dataset of up to `size` rows `(number, record)`: the number of the example, counted over all epochs,
            or `FINE` for a row that is to be a placeholder; and its index, or its record.
        source: the `Source`.
        decode: from `(number, record)` to `(image, label)`.
        placeholder: an image and a label of zeros.
        size: rows in the batch.
        options: `Options`, resolved.

    Returns:
        `(images, labels, failed)`; failed is int64 `(size,)`: the index of an example that failed, or `FINE`.
    """
    parallel = {"num_parallel_calls": options.threads or os.cpu_count() or 1, "deterministic": True}
    decode = tf.function(decode, autograph=False)  # which is used twice and traced once
    read = _reader(source)
    fine = tf.fill([size], _int64(FINE))

    def row_by_row(_):
        numbers = rows.map(lambda number, record: number).batch(size)
        numbers = numbers.concatenate(tf.data.Dataset.from_tensors(fine[:0])).take(1).get_single_element()
        failed = tf.where(numbers >= 0, numbers % source.num_examples, numbers)
        failed = tf.concat([failed, fine], 0)[:size]

        def once(place, row):
            """The row in its place, or nothing; what cannot be read is read again after a while."""
            alone = tf.data.Dataset.from_tensors(row)
            record = alone.map(read).ignore_errors()
            if source.read is not None:
                record = record.concatenate(after_a_while(alone).map(read).ignore_errors()).take(1)
            return record.map(lambda *row: (place, decode(*row))).ignore_errors()

        at_a_time = {"num_parallel_calls": _RETRIES_AT_A_TIME, "cycle_length": _RETRIES_AT_A_TIME}
        readable = rows.enumerate().interleave(once, deterministic=True, **at_a_time)
        no_row = tf.data.Dataset.from_tensors((_int64(0), placeholder)).batch(1)
        none = no_row.map(lambda place, row: (place[:0], tuple(part[:0] for part in row)))
        slots, parts = readable.batch(size).concatenate(none).take(1).get_single_element()
        parts = [tf.scatter_nd(slots[:, None], part, [size, *part.shape[1:]]) for part in parts]
        return *parts, tf.tensor_scatter_nd_update(failed, slots[:, None], tf.fill(tf.shape(slots), _int64(FINE)))

    # Mapped and batched in one, which TensorFlow does without a copy. One that is short fails too.
    decoded = rows.map(lambda *row: decode(*read(*row)), **parallel)
    whole = decoded.batch(size, drop_remainder=True).map(lambda *parts: (*parts, fine))
    again = tf.data.Dataset.from_tensors(0).map(row_by_row)
    batch = whole.ignore_errors().concatenate(again).take(1).get_single_element()
    shapes = [*(part.shape for part in placeholder), ()]
    return tuple(tf.ensure_shape(part, [size, *shape]) for part, shape in zip(batch, shapes))


def _reader(source):
    """The function from a row to its number and the example as it is stored, which fails where there is none."""

    def by_index(number, index):
        return number, source.read(index)

    def of_record(number, record):
        exists = tf.raw_ops.Assert(condition=number >= 0, data=["there is no such example"])
        with tf.control_dependencies([exists]):
            return tf.identity(number), source.shards.parse(record)

    return of_record if source.read is None else by_index


def _rows_of(numbers, records):
    return tf.data.Dataset.from_tensor_slices((numbers, records))


def _int64(value):
    return tf.constant(value, tf.int64)


def _placeholder(source, options):
    """An image and a label of zeros, for an example that cannot be read."""
    return tf.zeros(options.image_shape(source)), tf.zeros([len(source.class_names)])


def _finished(batches, batch_size, host_slots, options, failures):
    """The batches of a dataset of `(step, (batch, failed))`, noting what failed, and some of them ready ahead."""
    record = failures.recorder(batch_size, host_slots) if failures is not None else lambda step, failed: tf.no_op()

    def note(step, batch_and_failed):
        batch, failed = batch_and_failed
        with tf.control_dependencies([tf.cond(tf.reduce_any(failed != FINE), lambda: record(step, failed), tf.no_op)]):
            return tuple(tf.identity(part) for part in batch)

    result = tf.data.Options()
    result.deterministic = True
    # Batches are divided among hosts above, by arithmetic.
    result.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # TensorFlow would give every map threads of its own, each of which holds a batch.
    result.experimental_optimization.map_parallelization = False
    if options.threads:
        result.threading.private_threadpool_size = options.threads
    return batches.map(note).prefetch(options.prefetch).with_options(result)
