"""Tests of the learning-rate schedules."""

import keras
import numpy as np
import pytest

from keras_vit import optimizers


def test_schedules_match_reference(golden):
    arrays = golden("lr_schedules")
    assert len(arrays) == 6
    for key, (steps, rates) in arrays.items():
        decay, total, warmup, base = key.split("_")
        schedule = optimizers.Schedule(decay, float(base[1:]), int(total[1:]), int(warmup[1:]))
        ours = [float(schedule(step)) for step in steps]
        np.testing.assert_allclose(ours, rates, atol=1e-7, err_msg=key)


def test_constant_schedule_is_flat_after_warmup():
    schedule = optimizers.Schedule("constant", 0.1, total_steps=10, warmup_steps=4)
    rates = [float(schedule(step)) for step in (0, 1, 4, 9, 20)]
    np.testing.assert_allclose(rates, [0, 0.025, 0.1, 0.1, 0.1], rtol=1e-6)


def test_rsqrt_does_not_depend_on_total_steps():
    expected = [0.05, 0.1, 0.1 / 2**0.5, 0.05, 0.1 / 10**0.5]
    for total_steps in (50, 100_000):
        schedule = optimizers.Schedule("rsqrt", 0.1, total_steps, warmup_steps=10, timescale=30)
        rates = [float(schedule(step)) for step in (5, 10, 40, 100, 280)]
        np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_schedule_serialization_round_trips():
    schedule = optimizers.Schedule("cosine", 0.1, 10, 2)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert again.get_config() == schedule.get_config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("step", 0.1, 10), "one of cosine, linear, .*decay='step'"),
        (("linear", 1e-6, 10), "at most `base`"),
        (("cosine", 0.1, 10, 10), "less than `total_steps`"),
        (("cosine", 0, 10), "must be positive"),
    ],
)
def test_rejects_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        optimizers.Schedule(*arguments)
