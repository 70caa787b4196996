import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import optimizers

from ..shared import random_images


def _train(optimizer, start, gradients):
    """Returns the concatenated variables after each update. Each row of `gradients` has one array
    per variable."""
    variables = [keras.Variable(value, name=name) for name, value in start.items()]
    optimizer.build(variables)
    after = []
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in gradient])
        after.append(np.concatenate([keras.ops.convert_to_numpy(v.value) for v in variables]))
    return np.array(after)


def test_first_warmup_step_has_zero_rate():
    optimizer = optimizers.get("adamw", optimizers.Schedule("linear", 0.1, 10, 2), weight_decay=0.5)
    variable = keras.Variable([1.0, 2.0])
    optimizer.build([variable])
    gradient = keras.ops.convert_to_tensor([0.5, -3.0])
    optimizer.apply([gradient])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable.value), [1, 2])
    optimizer.apply([gradient])
    assert (keras.ops.convert_to_numpy(variable.value) != [1, 2]).all()


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_decay_is_scaled_by_learning_rate(name):
    optimizer = optimizers.get(name, 0.1, weight_decay=0.5)
    variable = keras.Variable([1.0, 2.0])
    optimizer.build([variable])
    optimizer.apply([keras.ops.zeros(2)])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(variable.value), [0.95, 1.9], rtol=1e-6)


# Weights and gradients for the next two tests, which compare updates with vit_jax and big_vision.
# The gradients are clipped to norm 1.
START = {"kernel": [1.0, -2.0, 3.0], "bias": [0.5]}
GRADIENTS = [
    optimizers.clip_by_global_norm(
        [np.array([0.3, -0.2, 0.1], "float32") * t, np.array([1.0], "float32") * t], 1.0
    )[0]
    for t in range(1, 6)
]


def test_sgd_with_bfloat16_momentum_matches_reference():
    schedule = optimizers.Schedule("cosine", 0.1, total_steps=10, warmup_steps=2)
    optimizer = optimizers.get("sgd", schedule, momentum_dtype="bfloat16")
    expected = [
        [1, -2, 3, 0.5],
        [0.97335356, -1.98223567, 2.99111795, 0.41098320],
        [0.89759976, -1.93147266, 2.96573639, 0.15716836],
        [0.80518973, -1.86949027, 2.93474507, -0.15236807],
        [0.70752126, -1.80415571, 2.90207767, -0.47904095],
    ]
    np.testing.assert_allclose(_train(optimizer, START, GRADIENTS), expected, atol=2e-7)


def test_adamw_matches_big_vision():
    schedule = optimizers.Schedule("cosine", 1e-3, total_steps=10, warmup_steps=2)
    optimizer = optimizers.get(
        "adamw", schedule, weight_decay=0.1, decay_mask="kernels", momentum_dtype="bfloat16"
    )
    expected = [
        [1, -2, 3, 0.5],
        [0.999450207, -1.999401927, 2.999351978, 0.499500871],
        [0.998349607, -1.998207808, 2.998057842, 0.498500884],
        [0.997293353, -1.997057796, 2.996811628, 0.497538716],
        [0.996355057, -1.996040463, 2.995708942, 0.496686995],
    ]
    np.testing.assert_allclose(_train(optimizer, START, GRADIENTS), expected, atol=3e-7)


def test_sgd_momentum_does_not_include_learning_rate():
    rates = [0.5, 0.25]

    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return keras.ops.where(step < 1, *rates)

    after = _train(optimizers.get("sgd", Halving()), {"kernel": [0.0]}, [[[1.0]], [[1.0]]])
    np.testing.assert_allclose(after[:, 0], [-0.5, -0.5 - 0.25 * 1.9], rtol=1e-6)


def test_adamw_adds_epsilon_to_corrected_moment():
    optimizer = optimizers.AdamW(0.1, epsilon=1.0)
    # After one update, the bias-corrected moments are 3 and 3**2, so the step is 0.1 * 3 / (3 +
    # epsilon).
    np.testing.assert_allclose(
        _train(optimizer, {"kernel": [0.0]}, [[[3.0]]]), [[-0.1 * 0.75]], rtol=1e-4
    )


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {"head/kernel", "head/bias", "encoder_norm/gamma", "class_token/cls"}),
        ({"decay_mask": "kernels"}, {"head/kernel"}),
        ({"no_decay": "cls, bias"}, {"head/kernel", "encoder_norm/gamma"}),
        ({"decay_mask": "kernels", "no_decay": "head"}, set()),
    ],
)
def test_decay_mask_selects_parameters(options, kept):
    model = _model()
    optimizer = optimizers.get("adamw", 0.1, weight_decay=0.5, **options)
    optimizer.build(model.trainable_variables)
    names = {"head/kernel", "head/bias", "encoder_norm/gamma", "class_token/cls"}
    for variable in model.trainable_variables:
        variable.assign(keras.ops.ones(variable.shape))
    optimizer.apply([keras.ops.zeros(v.shape) for v in model.trainable_variables])
    after = {v.path: float(keras.ops.max(v)) for v in model.trainable_variables}
    assert {name for name in names if after[name] < 1} == kept
    assert all(value == 1 or value == pytest.approx(0.95) for value in after.values())


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_layer_decay_scales_rate_by_depth(name):
    model = _model(num_layers=3)
    optimizer = optimizers.get(name, 1.0, layer_decay=0.5)
    before = {v.path: keras.ops.convert_to_numpy(v.value) for v in model.trainable_variables}
    optimizer.build(model.trainable_variables)
    optimizer.apply([keras.ops.ones(v.shape) for v in model.trainable_variables])
    steps = {
        v.path: before[v.path] - keras.ops.convert_to_numpy(v.value)
        for v in model.trainable_variables
    }
    for path, step in steps.items():
        layer = path.split("/")[0]
        share = {
            "head": 1,
            "encoder_norm": 1,
            "encoderblock_2": 0.5,
            "encoderblock_1": 0.25,
            "encoderblock_0": 0.125,
        }
        np.testing.assert_allclose(step, share.get(layer, 0.0625), rtol=1e-4, err_msg=path)
    assert {
        "embedding/kernel",
        "class_token/cls",
        "position_embedding/pos_embedding",
    } <= steps.keys()


def _model(num_layers=1):
    return keras_vit.VisionTransformer(
        patch_size=4,
        hidden_size=8,
        num_layers=num_layers,
        num_heads=2,
        mlp_dim=8,
        classes=3,
        input_shape=(8, 12, 3),
    )


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_optimizer_serialization_round_trips(name):
    options = {"momentum_dtype": "bfloat16", "layer_decay": 0.5}
    options |= {"weight_decay": 0.5, "no_decay": "bias", "decay_mask": "kernels"}
    optimizer = optimizers.get(name, optimizers.Schedule("cosine", 0.1, 10, 2), **options)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer) and again.get_config() == optimizer.get_config()
    for key, value in options.items():
        assert again.get_config()[key] == value


@pytest.mark.parametrize("name", ["adamw", pytest.param("sgd", marks=pytest.mark.full)])
def test_fit_resumes_saved_model_and_optimizer(name, tmp_path):
    model = _model()
    images = random_images((9, 8, 12, 3))
    schedule = optimizers.Schedule("cosine", 0.01, 20, 2)
    model.compile(
        optimizers.get(name, schedule, momentum_dtype="bfloat16"),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    fit = {"batch_size": 3, "shuffle": False, "verbose": 0}
    losses = model.fit(images, np.arange(9) % 3, epochs=3, **fit).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for ours, theirs in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(
            *(keras.ops.convert_to_numpy(keras.ops.cast(v, "float32")) for v in (ours, theirs)),
            err_msg=ours.path,
        )
    further = [m.fit(images, np.arange(9) % 3, **fit).history["loss"] for m in (again, model)]
    np.testing.assert_allclose(*further, rtol=1e-6)


def test_clips_by_global_norm():
    gradients = [np.array([[3.0]], "float32"), None, np.array([4.0], "float32")]
    clipped, norm = optimizers.clip_by_global_norm(gradients, 1.0)
    assert float(norm) == 5 and clipped[1] is None
    np.testing.assert_allclose([clipped[0][0, 0], clipped[2][0]], [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("norm", [0.0, 5.0, 6.0])
def test_zero_or_large_norm_does_not_clip(norm):
    gradients = [np.array([3.0], "float32"), np.array([4.0], "float32")]
    clipped, before = optimizers.clip_by_global_norm(gradients, norm)
    assert float(before) == 5
    np.testing.assert_array_equal([keras.ops.convert_to_numpy(g) for g in clipped], gradients)


def test_nonfinite_norm_is_returned():
    for bad in (np.nan, np.inf):
        _, norm = optimizers.clip_by_global_norm([np.array([bad, 1.0], "float32")], 1.0)
        assert not np.isfinite(float(norm))


def test_ema_update_is_a_weighted_mean():
    old = np.array([1.0, 2.0], "float32")
    new = np.array([3.0, 2.0], "float32")
    np.testing.assert_allclose(optimizers.ema_update(old, new, 0.75), [1.5, 2.0])
    # The average of a constant weight has no rounding error.
    third = np.array([1 / 3], "float32")
    np.testing.assert_array_equal(optimizers.ema_update(third, third, 0.9999), third)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "lamb"},
            f"`name` must be one of {', '.join(optimizers.OPTIMIZERS)}. Received: name='lamb'",
        ),
        (
            {"beta_1": 1.0},
            r"in \[0, 1\).*beta_1=1.0, beta_2=0.999, epsilon=1e-08",
        ),
        (
            {"name": "sgd", "momentum": -0.1},
            r"`momentum` must be in \[0, 1\). Received: momentum=-0.1",
        ),
        ({"weight_decay": -1}, "`weight_decay` must be 0 or more.* Received: weight_decay=-1"),
        (
            {"decay_mask": "biases"},
            "one of all, kernels.*decay_mask=biases",
        ),
        ({"layer_decay": 0}, r"`layer_decay` must be in \(0, 1\].* Received: layer_decay=0"),
        (
            {"momentum_dtype": "float16"},
            "float32 or bfloat16.*momentum_dtype=float16",
        ),
        (
            {"no_decay": "cls,hed"},
            "the model has no 'hed'.*no_decay='cls,hed'",
        ),
    ],
)
def test_rejects_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        optimizers.get(**{"name": "adamw", "schedule": 0.1, **arguments}).build(
            _model().trainable_variables
        )


def test_rejects_layer_decay_without_blocks_and_negative_norm():
    with pytest.raises(
        ValueError, match="must be 1 unless .*encoderblock_0.*Received: layer_decay=0.5"
    ):
        optimizers.get("sgd", 0.1, layer_decay=0.5).build([keras.Variable([1.0], name="kernel")])
    with pytest.raises(ValueError, match="`norm` must be 0 or more. Received: norm=-1"):
        optimizers.clip_by_global_norm([np.ones(2, "float32")], -1)
