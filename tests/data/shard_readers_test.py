"""Tests of `ShardReaders`, which reads sequential sources."""

import collections
import dataclasses
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data.sources.shards import ShardReaders
from keras_vit.data.sources.source import Source

from .batching_test import in_order

LENGTHS = (9, 2, 7, 5, 11, 3, 8, 5)  # 50 examples


def sharded(lengths=LENGTHS):
    empty = Source(None, sum(lengths), ("a",))
    return in_order(empty, lengths, parse=lambda record: {"image": record, "label": 0})


def noted(source, note):
    """Returns a source that calls `note(shard, record_number)` before it returns each record."""
    opened = source.shards.open

    def open_shard(shard, skip):
        def read(number, record):
            done = tf.numpy_function(
                lambda *place: note(*map(int, place)) or np.int64(0), [shard, number], tf.int64
            )
            with tf.control_dependencies([done]):
                return tf.identity(record)

        return opened(shard, skip).enumerate(skip).map(read)

    return dataclasses.replace(source, shards=dataclasses.replace(source.shards, open=open_shard))


def readers_of(source, batch_size=8, seed=1, shuffle_buffer=16):
    return ShardReaders(source.shards, batch_size, seed, shuffle_buffer)


def indices(source_readers, source, slots, count, first_step=0):
    """Returns the example indices at some batch positions (`slots`) for `count` steps: `(count,
    len(slots))`."""
    rows = source_readers.steps(slots, first_step).take(count)
    return np.stack([numbers.numpy() for numbers, _ in rows]) % source.num_examples


@pytest.mark.parametrize(("batch_size", "shuffle_buffer"), [(3, 1), (8, 16), (64, 10_000)])
def test_sharded_epoch_covers_every_example_once(batch_size, shuffle_buffer):
    source = sharded()
    rows = indices(
        readers_of(source, batch_size, 1, shuffle_buffer),
        source,
        range(batch_size),
        -(-150 // batch_size),
    )
    epochs = rows.ravel()[:150].reshape(3, 50).tolist()
    assert [sorted(epoch) for epoch in epochs] == [list(range(50))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.full
def test_subsets_of_batch_positions_match_the_whole_batch():
    source = sharded()
    assert readers_of(source, 12).count == 4 and readers_of(source, 12).size == 3
    whole = indices(readers_of(source, 12), source, range(12), 14)
    for slots, start in (
        (range(6, 12), 3),
        (range(4, 8), 0),
        ([0, 7, 11], 9),
    ):  # an epoch has 4.2 steps
        part = indices(readers_of(source, 12), source, slots, 14 - start, start)
        np.testing.assert_array_equal(part, whole[start:, list(slots)])


def test_hosts_divide_the_shards():
    source = sharded((10,) * 32)
    reads = [collections.Counter() for _ in range(2)]
    for host, count in enumerate(reads):
        counted = noted(source, lambda shard, number, count=count: count.update([(shard, number)]))
        indices(readers_of(counted, 16), source, range(8 * host, 8 * host + 8), 20)  # one epoch
    for count in reads:
        # 16 shards of this host, 1 shared, 8 of the next epoch.
        assert len({shard for shard, _ in count}) <= 16 + 1 + 8
        assert sum(count.values()) <= 160 + 8 * 10  # each of 8 readers may read 10 examples ahead
    assert len(set().union(*reads)) == 320


def test_sharded_evaluation_follows_evaluation_order():
    source = sharded((10,) * 32)
    reads = collections.Counter()
    order = data.evaluation_order(source, 16)
    assert sorted(order) == list(range(320)) and ShardReaders(source.shards, 16).count == 16
    for slots in (range(8), range(8, 16)):
        counted = noted(source, lambda *place: reads.update([place]))
        seen = indices(ShardReaders(counted.shards, 16), source, slots, 100)
        np.testing.assert_array_equal(seen, order.reshape(20, 16)[:, slots])
    assert set(reads.values()) == {1} and len(reads) == 320


def test_resumed_run_skips_finished_shards():
    source = sharded((100,) * 24)
    reads = collections.Counter()
    counted = noted(source, lambda *place: reads.update([place]))
    whole = indices(readers_of(source, 24), source, range(24), 92)
    # An epoch has 100 steps.
    resumed = indices(readers_of(counted, 24), source, range(24), 2, first_step=90)
    np.testing.assert_array_equal(whole[90:], resumed)
    assert len({shard for shard, _ in reads}) <= 2 * 12  # 12 readers, each on at most two shards
    assert sum(reads.values()) <= 12 * 3 * 16  # the two steps need 48 examples; 2,160 precede them


@pytest.mark.full
def test_shard_order_depends_on_epoch_and_seed():
    source = sharded((2,) * 64)
    orders = []
    for seed in (0, 1):
        rows = indices(readers_of(source, 1, seed, shuffle_buffer=1), source, [0], 3 * 128)
        orders += [list(dict.fromkeys(epoch // 2)) for epoch in rows.reshape(3, 128)]
    assert all(sorted(order) == list(range(64)) for order in orders)
    correlations = np.corrcoef([np.argsort(order) for order in [range(64), *orders]])
    # The correlation of two random orders has a standard deviation of about 1 / sqrt(64).
    assert np.abs(correlations[np.triu_indices(7, 1)]).max() < 4.5 / 8


def test_shard_readers_read_concurrently():
    """Each read waits until 16 reads are in progress, and fails after 60 seconds."""
    source = sharded((10,) * 32)
    condition = threading.Condition()
    waiting = 0
    most_waiting = 0

    def wait(shard, number):
        nonlocal waiting, most_waiting
        with condition:
            waiting += 1
            most_waiting = max(waiting, most_waiting)
            condition.notify_all()
            assert condition.wait_for(lambda: most_waiting >= 16, timeout=60)
            waiting -= 1

    threads = tf.data.Options()
    threads.threading.private_threadpool_size = 64  # each waiting call of `wait` blocks a thread
    rows = readers_of(noted(source, wait), 16).steps(range(16), 0).take(1).with_options(threads)
    assert len(list(rows)) == 1 and most_waiting >= 16


def read_steps(source):
    """Returns example numbers `(7, 8)` and records `(7, 8)`. The seven steps are slightly longer
    than an epoch."""
    rows = [[part.numpy() for part in row] for row in readers_of(source).steps(range(8), 0).take(7)]
    return [np.stack(part) for part in zip(*rows)]


def test_failed_record_loses_only_the_rest_of_its_shard():
    def fail(shard, number):
        if shard == 4 and number >= 6:
            raise OSError("HTTP 404")

    intact, _ = read_steps(sharded())
    numbers, records = read_steps(noted(sharded(), fail))
    np.testing.assert_array_equal(numbers, intact)
    lost = records == b""
    assert set(intact[lost] % 50) == set(range(23 + 6, 23 + 11))  # shard 4 starts at example 23
    np.testing.assert_array_equal(records[~lost].astype(int), intact[~lost] % 50)


@pytest.mark.full
def test_batches_of_sorted_shards_mix_classes():
    source = sharded((40,) * 64)
    classes = indices(readers_of(source, 64), source, range(64), 40) // 512
    counts = np.stack([np.bincount(row, minlength=5) for row in classes])
    chi_square = ((counts - 12.8) ** 2 / 12.8).sum(1)
    # 4 on average for random batches, 256 if each batch has one class.
    assert chi_square.mean() < 12
