"""Tests of the order of examples: epochs, mixup partners, and the slots (indices into a global
batch) of each host."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import order


@pytest.mark.parametrize(("batch_size", "hosts"), [(6, 1), (6, 2), (6, 3), (8, 8)])
def test_host_slices_divide_a_batch_in_order(batch_size, hosts):
    slots = [slot for host in range(hosts) for slot in order.host_slice(batch_size, hosts, host)]
    assert slots == list(range(batch_size))


@pytest.mark.parametrize(
    ("host", "form", "partners"),
    [
        (1, "", []),
        (0, "roll", [11, 0, 1, 2]),
        (1, "roll", [3, 4, 5, 6]),
        (1, "reverse", [7, 6, 5, 4]),
    ],
)
def test_host_reads_only_its_slots_and_their_partners(host, form, partners):
    """Each of three hosts has four slots."""
    slots = order.host_slice(12, 3, host)
    read, rows, partner_rows = order.host_rows(slots, 12, form)
    assert set(read) == {*slots, *partners} and list(read) == sorted(read)
    assert [read[row] for row in rows] == list(slots)
    assert [read[row] for row in partner_rows] == partners


@pytest.mark.parametrize("num_examples", [1, 7, 8, 9, 40])
def test_epoch_contains_every_index_once(num_examples):
    positions = tf.range(3 * num_examples, dtype=tf.int64)
    epochs, indices = order.index_at(positions, num_examples, seed=5)
    assert epochs.numpy().tolist() == np.repeat(range(3), num_examples).tolist()
    for epoch in np.split(indices.numpy(), 3):
        assert sorted(epoch) == list(range(num_examples))
    one = [int(order.index_at(position, num_examples, 5)[1]) for position in positions]
    assert one == indices.numpy().tolist()
