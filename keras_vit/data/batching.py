"""Makes batches from a source, in a reproducible order.

If an example cannot be read, the whole batch is made again, row by row. An example that cannot be
read this time is replaced by a placeholder with weight 0, so the other examples keep their places.
"""

import dataclasses
import os
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import examples, order
from keras_vit.data.bad_examples import raise_wrong_label, wrong_label
from keras_vit.data.options import Options
from keras_vit.data.sources.shards import NO_EXAMPLE, ShardReaders
from keras_vit.data.sources.source import Source
from keras_vit.data.targets import Classes, Target

# Batches made in parallel. Threads that finish one batch early start on the next.
_BATCHES_AT_A_TIME = 2
_ROWS_AT_A_TIME = 32  # rows decoded in parallel when a batch is retried row by row


def train_batches(
    source: Source,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    num_hosts: int = 1,
    host_index: int = 0,
    options: Options | None = None,
    failures: dict[int, list[int]] | None = None,
    target: Target | None = None,
    **fields: Any,
) -> tf.data.Dataset:
    """Returns an endless dataset of training batches.

    Random augmentation depends only on (seed, epoch, example), and mixup and CutMix only on (seed,
    step). A pipeline that starts at `start_step` therefore returns the same batches as an
    uninterrupted pipeline, on any number of hosts, threads and replicas. Each epoch contains every
    example once, unless `sampling` is set; a batch may span two epochs.

    Args:
        source: a `Source`.
        batch_size: number of examples in a batch, over all hosts and replicas.
        seed: a non-negative int32.
        start_step: step of the first batch.
        num_hosts: number of hosts. Each batch is divided into equal, contiguous shares, one per
            host.
        host_index: index of the share to return, from 0.
        options: `Options`; None for their defaults.
        failures: dict that is filled, by step, with the indices of unreadable examples, and with
            `-2 - index` for examples with a label out of range.
        target: makes the targets; None for `Classes`.
        **fields: fields of `Options` that replace those in `options`.

    Returns: A `tf.data.Dataset` of `(images, targets, weights)` with static shapes. B is
        `batch_size / num_hosts`. Images are float32 `(B, H, W, C)`, in [-1, 1] unless `mean` or
        `std` is set; `data.inputs` has other kinds. Targets are float32 `(B, classes)`;
        `data.targets` has other kinds. Weights are float32 `(B,)`: 1 or the weight of the class, or
        0 for examples that are unreadable or have no target. The targets of examples with weight 0
        are zeros. The image of an unreadable example is blank.

    Raises:
        ValueError: an argument or option is invalid, or the batch cannot be divided among the
            hosts.
        tf.errors.OpError: while iterating without `failures`, a label is out of range. With
            `failures`, `BadExamples.update` raises a `ValueError` instead.
    """
    options = dataclasses.replace(options or Options(), **fields).resolve(source)
    if not 0 <= seed < 2**31 or start_step < 0:
        raise ValueError(
            "`seed` must be a non-negative int32, and `start_step` 0 or more. "
            f"Received: seed={seed}, start_step={start_step}"
        )
    target = target or Classes(source, options)
    mixing = bool(options.mixup_alpha or options.cutmix_alpha)
    host_slots = order.host_slice(batch_size, num_hosts, host_index)
    read_slots, *rows_and_partners = order.host_rows(
        host_slots, batch_size, options.mixup_form if mixing else ""
    )
    rows = _training_rows(source, options, target, batch_size, seed, start_step, read_slots)

    def decode(number, example):
        key = tf.stack([tf.constant(seed, tf.int64), number])
        geometry = examples.geometry(key, source, options, example["image"])
        return examples.train_image(example, key, source, options), geometry

    def make(step, rows):
        images, targets, weights, failed = _make_batch(*rows, source, decode, options, target)
        weights = target.training_weights(targets, weights)
        batch = images, target.for_training(targets), weights
        if mixing:
            key = tf.stack([tf.constant(seed, tf.int64), step])
            batch = examples.mix_batch(*batch, *rows_and_partners, key, options, target)
            failed = tf.gather(failed, rows_and_partners[0])
        return step, batch, failed

    return _finished(rows, make, target, options, failures)


def _training_rows(source, options, target, batch_size, seed, start_step, slots):
    """Returns a dataset of `(step, (numbers, keys))` of the examples in these slots; see
    `_make_batch`."""
    steps = tf.data.Dataset.counter(start_step)
    if source.read is None:
        if options.sampling:
            raise ValueError(
                '`sampling` must be "" for data that are read in order, such as remote TFRecords; '
                f"`class_weights` can be a file. Received: sampling={options.sampling!r}"
            )
        readers = ShardReaders(source.shards, batch_size, seed, options.shuffle_buffer)
        return tf.data.Dataset.zip(steps, readers.steps(slots, start_step))

    def rows_of(step):
        position = step * batch_size + tf.constant(slots, tf.int64)
        repetition, index = target.index_at(position, seed)
        return step, (repetition * source.num_examples + index, index)

    return steps.map(rows_of)


def eval_batches(
    source: Source,
    *,
    batch_size: int,
    num_hosts: int = 1,
    host_index: int = 0,
    options: Options | None = None,
    failures: dict[int, list[int]] | None = None,
    target: Target | None = None,
    **fields: Any,
) -> tf.data.Dataset:
    """Returns a dataset with every example once, in the order of `evaluation_order`.

    The arguments are as in `train_batches`.

    Returns: A `tf.data.Dataset` of `(images, labels, weights)` as in training. Weight 0 marks
        padding in the last batch, unreadable examples, and examples without a label. The labels of
        all these rows are zeros. All hosts get the same number of batches.
    """
    options = dataclasses.replace(options or Options(), **fields).resolve(source)
    target = target or Classes(source, options)
    host_slots = order.host_slice(batch_size, num_hosts, host_index)
    n = source.num_examples
    steps = tf.data.Dataset.range(-(-n // batch_size))

    if source.read is None:
        readers = ShardReaders(source.shards, batch_size)
        rows = tf.data.Dataset.zip(steps, readers.steps(host_slots, 0))
    else:

        def rows_of(step):
            index = step * batch_size + tf.constant([*host_slots], tf.int64)
            return step, (tf.where(index < n, index, NO_EXAMPLE), index)

        rows = steps.map(rows_of)

    geometry = examples.geometry(None, source, options)

    def decode(number, example):
        return examples.eval_image(example, source, options), geometry

    def make(step, rows):
        *batch, failed = _make_batch(*rows, source, decode, options, target)
        return step, tuple(batch), failed

    return _finished(rows, make, target, options, failures)


def evaluation_order(source: Source, batch_size: int) -> np.ndarray:
    """Returns the index of the example at each position of `eval_batches`: int64
    `(num_examples,)`."""
    if source.shards is None:
        return np.arange(source.num_examples)
    return ShardReaders(source.shards, batch_size).evaluation_order()


def _make_batch(numbers, keys, source, decode, options, target):
    """Returns one batch `(images, targets, weights, failed)`; unreadable examples and padding are
    placeholders.

    `numbers` are `epoch * num_examples + index`, or `NO_EXAMPLE` for padding. `keys` are indices,
    or records if the source is read in order. `failed` has the index of each unreadable example,
    `wrong_label(index)` if the target is invalid, and `NO_EXAMPLE` for other rows.
    """
    size = numbers.shape[0]
    blank = options.kind.blank(options.image_shape(source))
    placeholder = tf.constant(blank), target.padding(), tf.constant(0.0)
    all_read = tf.cast(tf.reduce_all(numbers >= 0), tf.int64)
    row = _row_function(source, decode, target)

    def row_or_placeholder(number, key):
        is_read = number >= 0
        failed = tf.where(is_read, number % source.num_examples, NO_EXAMPLE)
        # Each row is tried twice: first in the whole batch, then alone. If some rows are
        # placeholders anyway, both attempts are alone.
        attempts = tf.where(is_read, 2 - all_read, 0)
        again = tf.data.Dataset.from_tensors((number, key)).repeat(attempts)
        last = tf.data.Dataset.from_tensors((*placeholder, failed))
        return again.map(row).ignore_errors().concatenate(last).take(1)

    # Unless some rows are placeholders anyway, first try to make the whole batch at once, because
    # TensorFlow then fuses `map` and `batch`, which avoids a copy.
    threads = options.threads or os.cpu_count() or 1
    rows = tf.data.Dataset.from_tensor_slices((numbers, keys))
    whole = rows.take(size * all_read).map(row, num_parallel_calls=threads, deterministic=True)
    whole = whole.batch(size, drop_remainder=True)
    # `flat_map` defers creating this dataset until it is needed.
    again = tf.data.Dataset.from_tensors(0).flat_map(
        lambda _: rows.interleave(
            row_or_placeholder,
            cycle_length=_ROWS_AT_A_TIME,
            num_parallel_calls=_ROWS_AT_A_TIME,
            deterministic=True,
        ).batch(size, drop_remainder=True)
    )
    batch = whole.ignore_errors().concatenate(again).take(1).get_single_element()
    shapes = [*(part.shape for part in placeholder), ()]
    return tuple(tf.ensure_shape(part, [size, *shape]) for part, shape in zip(batch, shapes))


def _row_function(source, decode, target):
    """Returns a function `(number, key)` that makes one row of a batch.

    The row is `(image, target, weight, failed)`; see `_make_batch`.
    """

    @tf.function(autograph=False)  # used twice, traced once
    def row(number, key):
        example = source.shards.parse(key) if source.read is None else source.read(key)
        image, geometry = decode(number, example)
        decoded, weight, is_valid = target.decode(example)
        transformed = target.transform(decoded, geometry)
        failed = tf.where(~is_valid, wrong_label(number % source.num_examples), NO_EXAMPLE)
        return image, transformed, weight, failed

    return row


def _finished(rows, make, target, options, failures):
    """Returns a prefetching dataset of the batches that `make` returns; records failed examples in
    `failures`."""

    def record(step, failed):
        indices = failed[failed != NO_EXAMPLE].tolist()
        if failures is not None:
            failures[int(step)] = indices
        elif min(indices) < 0:
            raise_wrong_label(target, wrong_label(min(indices)))
        return np.int64(0)

    def note(step, batch, failed):
        noted = tf.cond(
            tf.reduce_any(failed != NO_EXAMPLE),
            lambda: tf.numpy_function(record, [step, failed], tf.int64),
            lambda: tf.constant(0, tf.int64),
        )
        with tf.control_dependencies([noted]):
            return tuple(tf.identity(part) for part in batch)

    batches = rows.map(make, num_parallel_calls=_BATCHES_AT_A_TIME, deterministic=True)
    dataset_options = tf.data.Options()
    dataset_options.deterministic = True
    # Turn off sharding, because batches are already divided among the hosts.
    dataset_options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    # Turn off map parallelization, which would run every map in several threads, each with a batch
    # in memory.
    dataset_options.experimental_optimization.map_parallelization = False
    if options.threads:
        dataset_options.threading.private_threadpool_size = options.threads
    return batches.map(note).prefetch(options.prefetch).with_options(dataset_options)
