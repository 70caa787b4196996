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

from .helpers import sequential


def sharded(lengths=(9, 2, 7, 5, 11, 3, 8, 5)):
    """Returns a source whose records are the indices of the examples: 50 by default."""
    return sequential(Source(None, sum(lengths), ("a",)), lengths)


def noted(source, note):
    """Returns a source that calls `note(shard, record_number)` before it returns each record."""
    open_original = source.shards.open

    def call(shard, number):
        note(int(shard), int(number))
        return np.int64(0)

    def open_shard(shard, skip):
        def read(number, record):
            with tf.control_dependencies([tf.numpy_function(call, [shard, number], tf.int64)]):
                return tf.identity(record)

        return open_original(shard, skip).enumerate(skip).map(read)

    return dataclasses.replace(source, shards=dataclasses.replace(source.shards, open=open_shard))


def readers_of(source, batch_size=8, seed=1, shuffle_buffer=16):
    return ShardReaders(source.shards, batch_size, seed, shuffle_buffer)


def indices(readers, source, slots, count, first_step=0):
    """Returns the example indices at some batch positions (`slots`) for `count` steps: `(count,
    len(slots))`."""
    steps = readers.steps(slots, first_step).take(count)
    return np.stack([numbers.numpy() for numbers, _ in steps]) % source.num_examples


@pytest.mark.parametrize(("batch_size", "shuffle_buffer"), [(3, 1), (8, 16), (64, 10_000)])
def test_sharded_epoch_covers_every_example_once(batch_size, shuffle_buffer):
    source = sharded()
    readers = readers_of(source, batch_size, 1, shuffle_buffer)
    read = indices(readers, source, range(batch_size), -(-150 // batch_size))
    epochs = read.ravel()[:150].reshape(3, 50).tolist()
    assert [sorted(epoch) for epoch in epochs] == [list(range(50))] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_hosts_divide_the_shards():
    source = sharded((10,) * 32)
    read_by_hosts = []
    for host in range(2):
        read = []
        counted = noted(source, lambda *place, read=read: read.append(place))
        # These 20 steps are one epoch.
        indices(readers_of(counted, 16), source, range(8 * host, 8 * host + 8), 20)
        # 16 shards belong to this host, 1 is shared, and 8 belong to the next epoch.
        assert len({shard for shard, _ in read}) <= 16 + 1 + 8
        # Each of 8 readers may read 10 examples ahead.
        assert len(read) <= 160 + 8 * 10
        read_by_hosts += read
    assert len(set(read_by_hosts)) == 320


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
    # Each of 12 readers reads at most two shards.
    assert len({shard for shard, _ in reads}) <= 2 * 12
    # The two steps need 48 examples, and 2,160 examples precede them.
    assert sum(reads.values()) <= 12 * 3 * 16


@pytest.mark.full
def test_shard_order_depends_on_epoch_and_seed():
    source = sharded((2,) * 64)
    orders = []
    for seed in (0, 1):
        read = indices(readers_of(source, 1, seed, shuffle_buffer=1), source, [0], 3 * 128)
        # Each shard has two examples. `fromkeys` keeps the first occurrence of each shard.
        orders += [list(dict.fromkeys(epoch // 2)) for epoch in read.reshape(3, 128)]
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
    # Each waiting call of `wait` blocks a thread.
    threads.threading.private_threadpool_size = 64
    steps = readers_of(noted(source, wait), 16).steps(range(16), 0).take(1).with_options(threads)
    assert len(list(steps)) == 1 and most_waiting >= 16


def read_steps(source):
    """Returns example numbers `(7, 8)` and records `(7, 8)`. The seven steps are slightly longer
    than an epoch."""
    steps = readers_of(source).steps(range(8), 0).take(7)
    return [np.stack(parts) for parts in zip(*steps)]


def test_failed_record_loses_only_the_rest_of_its_shard():
    def fail(shard, number):
        if shard == 4 and number >= 6:
            raise OSError("HTTP 404")

    intact, _ = read_steps(sharded())
    numbers, records = read_steps(noted(sharded(), fail))
    np.testing.assert_array_equal(numbers, intact)
    lost = records == b""
    # Shard 4 starts at example 23 and has 11 examples.
    assert set(intact[lost] % 50) == set(range(23 + 6, 23 + 11))
    np.testing.assert_array_equal(records[~lost].astype(int), intact[~lost] % 50)
