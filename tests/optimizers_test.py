import keras
import numpy as np
import pytest

from keras_vit import optimizers


def test_schedules_are_the_originals(golden):
    arrays = golden("lr_schedules")
    assert len(arrays) == 6
    for key, (steps, rates) in arrays.items():
        decay, total, warmup, base = key.split("_")
        schedule = optimizers.Schedule(decay, float(base[1:]), int(total[1:]), int(warmup[1:]))
        ours = [float(schedule(step)) for step in steps]
        np.testing.assert_allclose(ours, rates, atol=1e-7, err_msg=key)


def test_a_constant_rate_is_constant_after_the_warm_up():
    schedule = optimizers.Schedule("constant", 0.1, total_steps=10, warmup_steps=4)
    np.testing.assert_allclose([float(schedule(s)) for s in (0, 1, 4, 9, 20)], [0, 0.025, 0.1, 0.1, 0.1], rtol=1e-6)


def test_the_first_update_has_rate_zero_under_a_warm_up():
    optimizer = optimizers.make("adamw", optimizers.Schedule("linear", 0.1, 10, 2), weight_decay=0.5)
    variable = keras.Variable([1.0, 2.0])
    optimizer.build([variable])
    gradient = keras.ops.convert_to_tensor([0.5, -3.0])
    optimizer.apply([gradient])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable.value), [1, 2])
    optimizer.apply([gradient])
    assert (keras.ops.convert_to_numpy(variable.value) != [1, 2]).all()


def test_the_decay_is_multiplied_by_the_rate():
    optimizer = optimizers.make("adamw", 0.1, weight_decay=0.5)
    variable = keras.Variable([1.0, 2.0])
    optimizer.build([variable])
    optimizer.apply([keras.ops.zeros(2)])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable.value), [0.95, 1.9], rtol=1e-6)


def test_a_schedule_survives_serialization():
    schedule = optimizers.Schedule("cosine", 0.1, 10, 2)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert again.get_config() == schedule.get_config()


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`decay` must be one of cosine, linear, constant. Received: decay='step'"):
        optimizers.Schedule("step", 0.1, 10)
    with pytest.raises(ValueError, match="end before training does. Received: warmup_steps=10, total_steps=10"):
        optimizers.Schedule("cosine", 0.1, 10, 10)
    with pytest.raises(ValueError, match="`name` must be one of adamw. Received: name='lamb'"):
        optimizers.make("lamb", 0.1)
