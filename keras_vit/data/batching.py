"""From a source to batches, in an order that is a function of the step alone.

    position = step * batch_size + slot, of which a host reads its own slots and those of their mixing partners

    step:             0                               1
    slot:        0  1 | 2  3                     0  1 | 2  3                   (4 slots, two hosts)

    access by    position -> index -> read -> \\
    index        (order.index_at)              \\
                                                train_example -> batch -> weights, mixing -> prefetch
    read in      records -> shuffle buffer ->  /
    order                -> this host's slots /

What cannot be read becomes a placeholder of weight 0 in its own slot and moves no other example. With tf.data service,
everything before `prefetch` happens on other machines.
"""

import os

import tensorflow as tf

from keras_vit.data import examples, order
from keras_vit.data.options import Options
from keras_vit.data.service import distribute

_FOREVER = 2**62


def train_batches(source, *, batch_size, seed, start_step=0, num_hosts=1, host_index=0, options=None, **fields):
    """An endless dataset of training batches.

    Everything random depends on (seed, epoch, example) only, or for mixing on (seed, step), so a pipeline that starts
    at `start_step` returns exactly what an uninterrupted one returns from there on, whatever the number of hosts,
    threads and replicas. An epoch holds every example once; a batch may span two epochs.

    A source with access by index starts anywhere at once. Any other is read from the start of the epoch, undecoded,
    and shuffled through `shuffle_buffer` examples.

    Args:
        source: a `Source`.
        batch_size: examples in a batch, over all hosts and replicas.
        seed: a non-negative int32.
        start_step: the first step of the dataset.
        num_hosts: into how many equal shares each batch is divided, in order.
        host_index: which share this dataset holds, from 0.
        options: `Options` that are resolved for the source, instead of their fields.
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
    host_slots = order.host_slice(batch_size, num_hosts, host_index)
    host_batch = order.HostBatch.of(host_slots, batch_size, options.mixup_form if mixing else "")

    def example(number, record):
        key = tf.stack([tf.constant(seed, tf.int64), number])
        return examples.train_example(record, key, source, options)

    def by_index(first, stride, placeholder):
        slots = tf.constant(host_batch.slots, tf.int64)

        def rows(turn):
            step = first + turn * stride
            epoch, index = order.index_at(step * batch_size + slots, source.num_examples, seed)
            return epoch * source.num_examples + index, index

        read = lambda number, index: example(number, source.read(index))  # noqa: E731
        return _by_index(rows, _FOREVER, read, placeholder, len(host_batch.slots), options.threads)

    def in_order(first, stride, placeholder):
        def assign_row(position, number, record):
            return host_batch.row_at(position, first, stride), (number, record)

        records = _shuffled_records(source, seed, first * batch_size // source.num_examples, options.shuffle_buffer)
        rows = _in_order(records.map(assign_row), _FOREVER, example, placeholder, options.threads)
        return rows.batch(len(host_batch.slots), drop_remainder=True)

    def batches(first, stride):
        read = in_order if source.read is None else by_index
        batches = read(first, stride, _placeholder(source, options))

        def finish(step, batch):
            batch = examples.with_weights(*batch, options.label_smoothing)
            if mixing:
                key = tf.stack([tf.constant(seed, tf.int64), step])
                batch = examples.mix_batch(*batch, host_batch.host_rows, host_batch.partner_rows, key, options)
            return step, batch

        steps = tf.data.Dataset.counter(first, stride)
        # Weights alone are no work for another thread, which would hold further batches.
        threads = {"num_parallel_calls": 2, "deterministic": True} if mixing else {}
        return tf.data.Dataset.zip(steps, batches).map(finish, **threads)

    if options.service:
        result = distribute(batches, start_step, options.service)
    else:
        result = batches(start_step, 1).map(lambda _, batch: batch)
    return _prefetched(result, options)


def eval_batches(source, *, batch_size, num_hosts=1, host_index=0, options=None, **fields):
    """A dataset that holds every example once, in order.

    Args:
        source: a `Source`.
        batch_size: examples in a batch, over all hosts and replicas.
        num_hosts: into how many equal shares each batch is divided, in order.
        host_index: which share this dataset holds, from 0.
        options: `Options` that are resolved for the source, instead of their fields.
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

    example = lambda record: examples.eval_example(record, source, options)  # noqa: E731
    placeholder = _placeholder(source, options)
    if source.read is None:
        scored, padding = order.eval_rows(n, batch_size, host_slots)
        host_batch = order.HostBatch.of(host_slots, batch_size)

        def assign_row(position, record):
            return host_batch.row_at(position, 0, 1), (record,)

        records = source.records().take(n).enumerate().map(assign_row)
        rows = _in_order(records, scored, example, placeholder, options.threads)
        batches = rows.concatenate(placeholder.repeat(padding)).batch(size, drop_remainder=True)
    else:

        def indices(step):
            index = step * batch_size + tf.range(host_slots.start, host_slots.stop, dtype=tf.int64)
            return (index[index < n],)

        read = lambda index: example(source.read(index))  # noqa: E731
        batches = _by_index(indices, -(-n // batch_size), read, placeholder, size, options.threads)
    return _prefetched(batches.map(examples.with_weights), options)


def _by_index(rows_of, count, function, placeholder, size, threads):
    """Batches 0, 1, ... up to `count`: `function` of every row that `rows_of` has for the number, in order.

    `placeholder` takes the place of a row that fails or is missing, up to `size` rows. Each batch is a dataset of its
    own, so that what fails moves nothing outside of it; two of them are read at a time, so that threads need not wait
    for the last row of a batch.
    """
    parallel = {"num_parallel_calls": threads or os.cpu_count() or 1, "deterministic": True}
    empty = placeholder.batch(1).map(lambda *element: (tf.zeros([0], tf.int64), tuple(part[:0] for part in element)))

    def batch(number):
        # Mapped and batched in one, which TensorFlow does without a copy; a row that fails costs the whole batch, which
        # is then read again. One that is short fails too.
        whole = tf.data.Dataset.from_tensor_slices(rows_of(number)).map(function, **parallel)
        again = tf.data.Dataset.from_tensors(number).flat_map(row_by_row)
        return whole.batch(size, drop_remainder=True).ignore_errors().concatenate(again).take(1)

    def row_by_row(number):
        rows = tf.data.Dataset.from_tensor_slices(rows_of(number)).enumerate()
        readable = rows.map(lambda place, row: (place, function(*row)), **parallel).ignore_errors()
        return readable.batch(size).concatenate(empty).take(1).map(scatter)

    def scatter(indices, element):
        parts = [tf.scatter_nd(indices[:, None], part, [size, *part.shape[1:]]) for part in element]
        return tuple(tf.ensure_shape(part, [size, *part.shape[1:]]) for part in parts)

    numbers = tf.data.Dataset.range(count)
    return numbers.interleave(batch, cycle_length=2, num_parallel_calls=2, deterministic=True)


def _in_order(records, count, function, placeholder, threads):
    """`function` of what a dataset of `(number, arguments)` has of 0, 1, ... up to `count`, as `_by_index` does.

    What has a negative number is left out undecoded, and what is missing or fails becomes the `placeholder`: leaving it
    out alone would move those that follow.
    """
    numbered = records.filter(lambda number, _: number >= 0).map(
        lambda number, arguments: (number, function(*arguments)),
        num_parallel_calls=threads or tf.data.AUTOTUNE,
        deterministic=True,
    )
    end = placeholder.map(lambda *element: (tf.constant(count, tf.int64), element))
    # The end, which cannot fail, shows how many of the last ones are missing.
    readable = numbered.ignore_errors().concatenate(end)

    def count_missing(last, numbered_element):
        number, element = numbered_element
        return number, (number - last - 1, number, *element)

    def fill(missing, number, *element):
        alone = tf.data.Dataset.from_tensors(element)
        to_variant = tf.data.experimental.to_variant

        def filled():
            return to_variant(placeholder.repeat(missing).concatenate(alone.take(tf.cast(number < count, tf.int64))))

        # A branch, because to make the longer dataset costs more than all the rest.
        chosen = tf.cond((missing == 0) & (number < count), lambda: to_variant(alone), filled)
        return tf.data.experimental.from_variant(chosen, alone.element_spec)

    return readable.scan(tf.constant(-1, tf.int64), count_missing).flat_map(fill)


def _placeholder(source, options):
    """A dataset of the one element that stands for an example that cannot be read."""
    zeros = tf.zeros(options.image_shape(source)), tf.zeros([len(source.class_names)])
    return tf.data.Dataset.from_tensors(zeros)


def _shuffled_records(source, seed, first_epoch, buffer):
    """`(position, epoch * N + number, record)` from an epoch on, undecoded, every epoch shuffled in its own way.

    Of an epoch with fewer records than the source says, the last positions are missing.
    """
    n = source.num_examples

    def epoch(number):
        records = source.records().take(n).enumerate(number * n)
        specs = tf.nest.flatten(records.element_spec)
        # `Dataset.shuffle` would mix the global seed in.
        shuffled = tf.raw_ops.ShuffleDataset(
            input_dataset=tf.data.experimental.to_variant(records),
            buffer_size=tf.constant(min(buffer, n), tf.int64),
            seed=tf.constant(seed, tf.int64),
            seed2=number + 1,
            output_types=[spec.dtype for spec in specs],
            output_shapes=[spec.shape for spec in specs],
            reshuffle_each_iteration=False,
        )
        shuffled = tf.data.experimental.from_variant(shuffled, records.element_spec)
        return shuffled.enumerate(number * n).map(lambda position, record: (position, *record))

    return tf.data.Dataset.range(first_epoch, _FOREVER).flat_map(epoch)


def _prefetched(batches, options):
    result = tf.data.Options()
    result.deterministic = True
    # Batches are divided among hosts above, by arithmetic.
    result.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    if options.threads:
        result.threading.private_threadpool_size = options.threads
    return batches.prefetch(options.prefetch).with_options(result)
