"""Tests of the optimizers, of gradient clipping and of the EMA."""

import types

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import VisionTransformer, optimizers
from keras_vit.optimizers.base import layerwise_multipliers

from ..shared import SIZES, random_images, to_numpy

# Weights and gradients of the comparisons with vit_jax and big_vision. The gradients are clipped
# to norm 1.
START = {"kernel": [1.0, -2.0, 3.0], "bias": [0.5]}
GRADIENTS = [
    optimizers.clip_by_global_norm(
        [np.array([0.3, -0.2, 0.1], "float32") * t, np.array([1.0], "float32") * t], 1.0
    )[0]
    for t in range(1, 6)
]


def _train(optimizer, start, gradients):
    """Returns the concatenated variables after each update. Each row of `gradients` has one array
    per variable."""
    variables = [keras.Variable(value, name=name) for name, value in start.items()]
    optimizer.build(variables)
    after = []
    for gradient in gradients:
        optimizer.apply([ops.convert_to_tensor(g, "float32") for g in gradient])
        after.append(np.concatenate([to_numpy(variable) for variable in variables]))
    return np.array(after)


def _model(num_layers=1):
    sizes = {**SIZES, "num_layers": num_layers}
    return VisionTransformer(**sizes, classes=3, input_shape=(8, 12, 3))


@pytest.mark.parametrize(
    ("name", "rate", "options", "expected"),
    [
        (
            "sgd",
            0.1,
            {},
            [
                [1, -2, 3, 0.5],
                [0.97335356, -1.98223567, 2.99111795, 0.41098320],
                [0.89759976, -1.93147266, 2.96573639, 0.15716836],
                [0.80518973, -1.86949027, 2.93474507, -0.15236807],
                [0.70752126, -1.80415571, 2.90207767, -0.47904095],
            ],
        ),
        (
            "adamw",
            1e-3,
            {"weight_decay": 0.1, "decay_mask": "kernels"},
            [
                [1, -2, 3, 0.5],
                [0.999450207, -1.999401927, 2.999351978, 0.499500871],
                [0.998349607, -1.998207808, 2.998057842, 0.498500884],
                [0.997293353, -1.997057796, 2.996811628, 0.497538716],
                [0.996355057, -1.996040463, 2.995708942, 0.496686995],
            ],
        ),
    ],
)
def test_updates_match_vit_jax_and_big_vision(name, rate, options, expected):
    schedule = optimizers.Schedule("cosine", rate, total_steps=10, warmup_steps=2)
    optimizer = optimizers.get(name, schedule, momentum_dtype="bfloat16", **options)
    np.testing.assert_allclose(_train(optimizer, START, GRADIENTS), expected, atol=3e-7)


def test_adamw_adds_epsilon_to_corrected_moment():
    after = _train(optimizers.AdamW(0.1, epsilon=1.0), {"kernel": [0.0]}, [[[3.0]]])
    # The bias-corrected moments are 3 and 3**2, so the step is 0.1 * 3 / (3 + epsilon).
    np.testing.assert_allclose(after, [[-0.1 * 0.75]], rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "excluded", "decayed"),
    [
        ({}, [], {"head/kernel", "head/bias", "encoder_norm/gamma", "class_token/cls"}),
        ({"decay_mask": "kernels"}, [], {"head/kernel"}),
        ({"no_decay": "cls, bias"}, ["gamma"], {"head/kernel"}),
        ({"decay_mask": "kernels", "no_decay": "head"}, [], set()),
    ],
)
def test_mask_names_and_keras_method_select_parameters_that_decay(options, excluded, decayed):
    variables = []
    for path in ("head/kernel", "head/bias", "encoder_norm/gamma", "class_token/cls"):
        layer, name = path.split("/")
        with keras.name_scope(layer):
            variables.append(keras.Variable(1.0, name=name))
    optimizer = optimizers.get("adamw", 0.1, weight_decay=0.5, **options)
    optimizer.exclude_from_weight_decay(var_names=excluded)
    optimizer.build(variables)
    optimizer.apply([ops.zeros(())] * len(variables))
    after = {variable.path: float(variable.value) for variable in variables}
    assert after == pytest.approx({path: 0.95 if path in decayed else 1 for path in after})


def test_layer_decay_scales_rate_by_depth():
    variables = _model(num_layers=3).trainable_variables
    optimizer = optimizers.SGD(1.0, layer_decay=0.5)
    optimizer.build(variables)
    before = [to_numpy(variable) for variable in variables]
    optimizer.apply([ops.ones(variable.shape) for variable in variables])
    rates = {
        "head": 1,
        "encoder_norm": 1,
        "encoderblock_2": 0.5,
        "encoderblock_1": 0.25,
        "encoderblock_0": 0.125,
        "embedding": 0.0625,
        "class_token": 0.0625,
        "position_embedding": 0.0625,
    }
    for variable, old in zip(variables, before):
        rate = rates[variable.path.split("/")[0]]
        np.testing.assert_allclose(old - to_numpy(variable), rate, rtol=1e-4, err_msg=variable.path)


def test_layer_decay_refuses_two_towers():
    paths = ["encoderblock_0/kernel", "encoderblock_1/kernel", "token_embedding/embeddings"]
    variables = [types.SimpleNamespace(path=path) for path in (*paths, *paths)]
    assert layerwise_multipliers(variables[:3], 0.5) == [0.25, 0.5, 1.0]
    with pytest.raises(ValueError, match="must be 1 for a model with two trained towers"):
        layerwise_multipliers(variables, 0.5)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_optimizer_serialization_round_trips(name):
    options = {
        "momentum_dtype": "bfloat16",
        "layer_decay": 0.5,
        "weight_decay": 0.5,
        "no_decay": "bias",
        "decay_mask": "kernels",
    }
    optimizer = optimizers.get(name, optimizers.Schedule("cosine", 0.1, 10, 2), **options)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer) and again.get_config() == optimizer.get_config()
    assert options.items() <= again.get_config().items()


def test_fit_resumes_saved_model_and_optimizer(tmp_path):
    model = _model()
    images = random_images((9, 8, 12, 3))
    labels = np.arange(9) % 3
    schedule = optimizers.Schedule("cosine", 0.01, 20, 2)
    model.compile(
        optimizers.AdamW(schedule, momentum_dtype="bfloat16"),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    options = {"batch_size": 3, "shuffle": False, "verbose": 0}
    model.fit(images, labels, **options)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    losses = [each.fit(images, labels, **options).history["loss"] for each in (again, model)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    for ours, theirs in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs), err_msg=ours.path)


@pytest.mark.parametrize(("norm", "factor"), [(1.0, 0.2), (0.0, 1), (6.0, 1)])
def test_clips_only_larger_norms(norm, factor):
    gradients = [np.array([[3.0]], "float32"), None, np.array([4.0], "float32")]
    (first, missing, last), before = optimizers.clip_by_global_norm(gradients, norm)
    assert float(before) == 5 and missing is None
    np.testing.assert_allclose([first[0, 0], last[0]], [3 * factor, 4 * factor], rtol=1e-6)


def test_ema_of_a_constant_weight_has_no_rounding_error():
    third = np.array([1 / 3], "float32")
    np.testing.assert_array_equal(optimizers.ema_update(third, third, 0.9999), third)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "lamb"}, "`name` must be one of adamw, sgd"),
        ({"beta_1": 1.0}, r"in \[0, 1\).*beta_1=1.0"),
        ({"name": "sgd", "momentum": -0.1}, "`momentum` must be in"),
        ({"weight_decay": -1}, "`weight_decay` must be 0 or more"),
        ({"decay_mask": "biases"}, "one of all, kernels"),
        ({"layer_decay": 0}, "`layer_decay` must be in"),
        ({"momentum_dtype": "float16"}, "float32 or bfloat16"),
        ({"no_decay": "bias,hed"}, "the model has no 'hed'"),
        ({"layer_decay": 0.5}, "must be 1 unless .*encoderblock_0"),
    ],
)
def test_rejects_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        optimizer = optimizers.get(**{"name": "adamw", "schedule": 0.1, **arguments})
        optimizer.build([keras.Variable([1.0], name="bias")])


def test_rejects_negative_norm():
    with pytest.raises(ValueError, match="`norm` must be 0 or more"):
        optimizers.clip_by_global_norm([np.ones(2, "float32")], -1)
