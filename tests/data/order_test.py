"""Which example stands where: arithmetic alone, but for the shuffle itself."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import order


@pytest.mark.parametrize(("form", "expected"), [("roll", [3, 0, 1, 2]), ("reverse", [3, 2, 1, 0])])
def test_partners_are_those_of_the_rolled_or_the_reversed_batch(form, expected):
    assert [order.partner_of(place, 4, form) for place in range(4)] == expected
    roll = np.roll(np.arange(4), 1) if form == "roll" else np.arange(4)[::-1]
    assert roll.tolist() == expected


@pytest.mark.parametrize(("batch_size", "hosts"), [(6, 1), (6, 2), (6, 3), (8, 8)])
def test_host_slices_divide_a_batch_in_order(batch_size, hosts):
    slots = [slot for host in range(hosts) for slot in order.host_slice(batch_size, hosts, host)]
    assert slots == list(range(batch_size))


@pytest.mark.parametrize("form", ["", "roll", "reverse"])
@pytest.mark.parametrize("host", [0, 1, 2])
def test_a_host_reads_its_slots_and_their_partners_and_no_other(form, host):
    slots = order.host_slice(12, 3, host)
    batch = order.HostBatch.of(slots, 12, form)
    partners = [order.partner_of(slot, 12, form) for slot in slots] if form else []
    assert set(batch.slots) == {*slots, *partners} and list(batch.slots) == sorted(batch.slots)
    assert [batch.slots[row] for row in batch.host_rows] == list(slots)
    assert [batch.slots[row] for row in batch.partner_rows] == partners


@pytest.mark.parametrize("num_examples", [1, 7, 8, 9, 40])
def test_an_epoch_holds_every_index_once(num_examples):
    positions = tf.range(3 * num_examples, dtype=tf.int64)
    epochs, indices = order.index_at(positions, num_examples, seed=5)
    assert epochs.numpy().tolist() == np.repeat(range(3), num_examples).tolist()
    for epoch in np.split(indices.numpy(), 3):
        assert sorted(epoch) == list(range(num_examples))
    one = [int(order.index_at(position, num_examples, 5)[1]) for position in positions]
    assert one == indices.numpy().tolist()


@pytest.mark.parametrize("num_examples", [1, 5, 6, 7, 12])
def test_hosts_score_every_example_and_fill_up_to_as_many_rows(num_examples):
    counts = [order.eval_rows(num_examples, 6, order.host_slice(6, 3, host)) for host in range(3)]
    assert sum(scored for scored, _ in counts) == num_examples
    assert {scored + padding for scored, padding in counts} == {-(-num_examples // 6) * 2}
