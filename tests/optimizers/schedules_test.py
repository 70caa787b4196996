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
    np.testing.assert_allclose(
        [float(schedule(s)) for s in (0, 1, 4, 9, 20)], [0, 0.025, 0.1, 0.1, 0.1], rtol=1e-6
    )


def test_rsqrt_does_not_depend_on_total_steps():
    for total in (50, 100_000):
        schedule = optimizers.Schedule("rsqrt", 0.1, total, warmup_steps=10, timescale=30)
        np.testing.assert_allclose(
            [float(schedule(s)) for s in (5, 10, 40, 100, 280)],
            [0.05, 0.1, 0.1 / 2**0.5, 0.05, 0.1 / 10**0.5],
            rtol=1e-6,
        )


def test_schedule_serialization_round_trips():
    schedule = optimizers.Schedule("cosine", 0.1, 10, 2)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert again.get_config() == schedule.get_config()


def test_rejects_bad_arguments():
    with pytest.raises(
        ValueError,
        match="cosine, linear, rsqrt, .*decay='step'",
    ):
        optimizers.Schedule("step", 0.1, 10)
    with pytest.raises(ValueError, match="at most `base`.*: base=1e-06, end=1e-05"):
        optimizers.Schedule("linear", 1e-6, 10)
    assert float(optimizers.Schedule("linear", 1e-5, 10)(10)) == pytest.approx(1e-5)
    with pytest.raises(ValueError, match="less than .*warmup_steps=10, total_steps=10"):
        optimizers.Schedule("cosine", 0.1, 10, 10)
    with pytest.raises(ValueError, match="must be positive.*: base=0, end=1e-05"):
        optimizers.Schedule("cosine", 0, 10)
