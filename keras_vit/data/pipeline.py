"""From a source to batches, in an order that is a function of the step alone."""

import os

import numpy as np
import tensorflow as tf

from keras_vit.data import examples, mixup
from keras_vit.data.options import Options
from keras_vit.data.service import distribute

_FOREVER = 2**62


def train_batches(source, *, batch_size, seed, start_step=0, num_hosts=1, host_index=0, **options):
    """An endless dataset of training batches.

    Everything random depends on (seed, epoch, example) only, or for mixing on (seed, step), so a pipeline that starts
    at `start_step` gives exactly what an uninterrupted one gives from there on, whatever the number of hosts, threads
    and replicas. An epoch holds every example once; a batch may span two epochs.

    A source with access by index starts anywhere at once. Any other is read from the start of the epoch, undecoded,
    and shuffled through `shuffle_buffer` examples.

    Args:
        source: a `Source`.
        batch_size: examples in a batch, over all hosts and replicas.
        seed: a non-negative int32.
        start_step: the first batch to give.
        num_hosts: into how many equal shares each batch is divided, in order.
        host_index: which share to give, from 0.
        **options: fields of `Options`.

    Returns:
        A `tf.data.Dataset` of `(images, labels, weights)`, B examples each, `batch_size / num_hosts`: float32 `(B, H,
        W, 3)` in [-1, 1]; float32 `(B, classes)`, rows that sum to 1; and float32 `(B,)`, 1, or 0 for an example that
        cannot be read, whose image and label are 0. Shapes are static.

    Raises:
        ValueError: an option is out of range, or the batch does not divide among the hosts.
    """
    options = Options(**options).resolve(source)
    if not 0 <= seed < 2**31 or start_step < 0:
        raise ValueError(f"Seed and step must be int32, 0 or more. Received: seed={seed}, start_step={start_step}")
    own = _share(batch_size, num_hosts, host_index)
    mixing = bool(options.mixup_alpha or options.cutmix_alpha)
    partners = [mixup.partner_of(place, batch_size, options.mixup_form) for place in own] if mixing else []
    # What this host reads of each batch: its share, and whom other hosts have that its share is mixed with.
    places = sorted({*own, *partners})

    def example(number, stored):
        key = tf.stack([tf.constant(seed, tf.int64), number])
        return examples.train_example(stored, key, source, options)

    def by_index(first, stride, nothing):
        def rows(turn):
            step = first + turn * stride
            epoch, index = index_at(step * batch_size + tf.constant(places, tf.int64), source.num_examples, seed)
            return epoch * source.num_examples + index, index

        read = lambda number, index: example(number, source.read(index))  # noqa: E731
        return _by_index(rows, _FOREVER, read, nothing, len(places), options.threads)

    def in_order(first, stride, nothing):
        # Where in this host's part of a batch each place is; -1 for the places of other hosts.
        order = np.full(batch_size, -1)
        order[places] = range(len(places))
        order = tf.constant(order, tf.int64)

        def turn(position, number, stored):
            steps, place = position // batch_size - first, order[position % batch_size]
            own = (place >= 0) & (steps >= 0) & (steps % stride == 0)
            return tf.where(own, steps // stride * len(places) + place, -1), (number, stored)

        stored = _shuffled_records(source, seed, first * batch_size // source.num_examples, options.shuffle_buffer)
        found = _in_order(stored.map(turn), _FOREVER, example, nothing, options.threads)
        return found.batch(len(places), drop_remainder=True)

    def batches(first, stride):
        read = in_order if source.read is None else by_index
        batches = read(first, stride, _nothing(source, options, options.train_crop))
        at_own, at_partners = np.searchsorted(places, own), np.searchsorted(places, partners)

        def finished(step, batch):
            batch = examples.weighted(*batch, options.label_smoothing)
            if mixing:
                key = tf.stack([tf.constant(seed, tf.int64), step])
                batch = examples.mixed_batch(*batch, at_own, at_partners, key, options)
            return step, batch

        steps = tf.data.Dataset.counter(first, stride)
        # Weights alone are no work for another thread, which would hold further batches.
        threads = {"num_parallel_calls": 2, "deterministic": True} if mixing else {}
        return tf.data.Dataset.zip(steps, batches).map(finished, **threads)

    if options.service:
        result = distribute(batches, start_step, options.service)
    else:
        result = batches(start_step, 1).map(lambda _, batch: batch)
    return _finished(result, options)


def eval_batches(source, *, batch_size, num_hosts=1, host_index=0, **options):
    """A dataset that holds every example once, in order.

    Args:
        source: a `Source`.
        batch_size: examples in a batch, over all hosts and replicas.
        num_hosts: into how many equal shares each batch is divided, in order.
        host_index: which share to give, from 0.
        **options: fields of `Options`.

    Returns:
        A `tf.data.Dataset` of `(images, labels, weights)` as in training. A weight of 0 marks what only fills up the
        last batch, what cannot be read, and what has no right answer (a row of zeros). Every host gives as many
        batches.

    Raises:
        ValueError: an option is out of range, or the batch does not divide among the hosts.
    """
    options = Options(**options).resolve(source)
    places = _share(batch_size, num_hosts, host_index)
    n = source.num_examples

    example = lambda stored: examples.eval_example(stored, source, options)  # noqa: E731
    nothing = _nothing(source, options, options.eval_crop)
    if source.read is None:
        # Of every batch but the last this host scores its share, and of the last what there is of it.
        scored = n // batch_size * len(places) + sum(n // batch_size * batch_size + place < n for place in places)
        padding = -(-n // batch_size) * len(places) - scored

        def turn(position, stored):
            place = position % batch_size - places[0]
            own = (place >= 0) & (place < len(places))
            return tf.where(own, position // batch_size * len(places) + place, -1), (stored,)

        stored = source.records().take(n).enumerate().map(turn)
        found = _in_order(stored, scored, example, nothing, options.threads).concatenate(nothing.repeat(padding))
        batches = found.batch(len(places), drop_remainder=True)
    else:

        def indices(step):
            index = step * batch_size + tf.range(places.start, places.stop, dtype=tf.int64)
            return (index[index < n],)

        read = lambda index: example(source.read(index))  # noqa: E731
        batches = _by_index(indices, -(-n // batch_size), read, nothing, len(places), options.threads)
    return _finished(batches.map(examples.weighted), options)


def index_at(position, num_examples, seed):
    """Which example stands at a position of the training order, counted from the first step.

    Args:
        position: int64, a scalar or `(B,)`.

    Returns:
        `(epoch, index)`, int64 of the same shape.
    """
    epoch, place = position // num_examples, position % num_examples
    # Reading by a shuffled index instead of a shuffle buffer: any step can be reached at once. The raw op, because
    # `tf.random.experimental.index_shuffle` takes no seed for each index.
    key = tf.stack([tf.fill(tf.shape(epoch), tf.constant(seed, tf.int64)), epoch, tf.zeros_like(epoch)], -1)
    last = tf.constant(num_examples - 1, tf.int64)
    return epoch, tf.raw_ops.RandomIndexShuffle(index=place, seed=key, max_index=last)


def _share(batch_size, num_hosts, host_index):
    """The places in a global batch that belong to one host."""
    if batch_size < 1 or num_hosts < 1 or batch_size % num_hosts or not 0 <= host_index < num_hosts:
        raise ValueError(
            "The batch must divide into equal shares, one for each host. "
            f"Received: batch_size={batch_size}, num_hosts={num_hosts}, host_index={host_index}"
        )
    share = batch_size // num_hosts
    return range(host_index * share, (host_index + 1) * share)


def _by_index(rows_of, count, function, nothing, size, threads):
    """Batches 0, 1, ... up to `count`: `function` of every row that `rows_of` gives for the number, in order.

    `nothing` takes the place of a row that fails or is not there, up to `size`. Each batch is a dataset of its own, so
    that what fails moves nothing outside of it; two of them are made at a time, so that threads need not wait for the
    last row of a batch.
    """
    parallel = {"num_parallel_calls": threads or os.cpu_count() or 1, "deterministic": True}
    empty = nothing.batch(1).map(lambda *element: (tf.zeros([0], tf.int64), tuple(part[:0] for part in element)))

    def batch(number):
        # Mapped and batched in one, which TensorFlow does without a copy; a row that fails costs the whole batch, which
        # is then made again. One that is short fails too.
        whole = tf.data.Dataset.from_tensor_slices(rows_of(number)).map(function, **parallel)
        again = tf.data.Dataset.from_tensors(number).flat_map(row_by_row)
        return whole.batch(size, drop_remainder=True).ignore_errors().concatenate(again).take(1)

    def row_by_row(number):
        rows = tf.data.Dataset.from_tensor_slices(rows_of(number)).enumerate()
        made = rows.map(lambda place, row: (place, function(*row)), **parallel).ignore_errors()
        return made.batch(size).concatenate(empty).take(1).map(with_holes)

    def with_holes(places, element):
        parts = [tf.scatter_nd(places[:, None], part, [size, *part.shape[1:]]) for part in element]
        return tuple(tf.ensure_shape(part, [size, *part.shape[1:]]) for part in parts)

    numbers = tf.data.Dataset.range(count)
    return numbers.interleave(batch, cycle_length=2, num_parallel_calls=2, deterministic=True)


def _in_order(stored, count, function, nothing, threads):
    """`function` of what a dataset of `(number, arguments)` has of 0, 1, ... up to `count`, as `_by_index` does.

    What has a negative number is left out undecoded, and what is missing or fails gives `nothing`: leaving it out alone
    would move those that follow.
    """
    numbered = stored.filter(lambda number, _: number >= 0).map(
        lambda number, arguments: (number, function(*arguments)),
        num_parallel_calls=threads or tf.data.AUTOTUNE,
        deterministic=True,
    )
    end = nothing.map(lambda *element: (tf.constant(count, tf.int64), element))
    # The end, which cannot fail, shows how many of the last ones are missing.
    whole = numbered.ignore_errors().concatenate(end)

    def gap(last, given):
        number, element = given
        return number, (number - last - 1, number, *element)

    def fill(missing, number, *element):
        own = tf.data.Dataset.from_tensors(element)
        to_variant = tf.data.experimental.to_variant

        def filled():
            return to_variant(nothing.repeat(missing).concatenate(own.take(tf.cast(number < count, tf.int64))))

        # A branch, because to make the longer dataset costs more than all the rest.
        chosen = tf.cond((missing == 0) & (number < count), lambda: to_variant(own), filled)
        return tf.data.experimental.from_variant(chosen, own.element_spec)

    return whole.scan(tf.constant(-1, tf.int64), gap).flat_map(fill)


def _nothing(source, options, crop):
    """A dataset of the one element that stands for an example that cannot be read."""
    size = options.image_size
    if crop == "none" and not size:
        shape = tf.data.Dataset.range(1).map(source.read).element_spec["image"].shape
    else:
        shape = (size, size, 3)
    return tf.data.Dataset.from_tensors((tf.zeros(shape), tf.zeros([len(source.class_names)])))


def _shuffled_records(source, seed, first_epoch, buffer):
    """`(position, epoch * N + number, stored)` from an epoch on, undecoded, every epoch shuffled in its own way.

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


def _finished(batches, options):
    result = tf.data.Options()
    result.deterministic = True
    # Batches are divided among hosts above, by arithmetic.
    result.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    if options.threads:
        result.threading.private_threadpool_size = options.threads
    return batches.prefetch(options.prefetch).with_options(result)
