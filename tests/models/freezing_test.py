"""Tests of `freeze`, `unfreeze` and `enable_lora`."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import JIT, THREE_LAYERS, random_images, to_numpy

MODEL = {**THREE_LAYERS, "input_shape": (16, 24, 3)}


def _vit(**arguments):
    return keras_vit.VisionTransformer(**MODEL, **arguments)


def _quiet(line):
    """Ignores the line with the number of parameters."""


def _reloaded(model, tmp_path):
    model.save(tmp_path / "saved.keras")
    return keras.models.load_model(tmp_path / "saved.keras")


def _assert_training_keeps(variables, model):
    """Checks that two training steps of a model do not change some variables."""
    before = [to_numpy(variable) for variable in variables]
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=JIT)
    model.fit(random_images((4, 16, 24, 3)), np.ones((4, 4)), epochs=2, verbose=0)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), value, err_msg=variable.path)


def _trainable_layers(model):
    return {variable.path.split("/")[0] for variable in model.trainable_variables}


@pytest.mark.parametrize(
    "up_to, trained",
    [
        pytest.param("head", {"head"}, marks=pytest.mark.one_backend),
        pytest.param(
            0,
            {"encoderblock_0", "encoderblock_1", "encoderblock_2", "encoder_norm", "head"},
            marks=pytest.mark.one_backend,
        ),
        (2, {"encoderblock_2", "encoder_norm", "head"}),
        pytest.param(-1, {"encoder_norm", "head"}, marks=pytest.mark.one_backend),
    ],
)
def test_freeze_selects_layers_and_counts_their_parameters(up_to, trained):
    model = _vit()
    lines = []
    count = keras_vit.freeze(model, up_to=up_to, write=lines.append)
    assert _trainable_layers(model) == trained
    assert count == sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    assert lines == [f"{count:,} of {model.count_params():,} parameters are trainable"]


def test_training_keeps_frozen_weights():
    model = _vit()
    keras_vit.freeze(model, up_to=2, write=_quiet)
    _assert_training_keeps(model.get_layer("embedding").weights, model)


def test_wrapped_model_trains_the_outer_layers():
    vit = _vit(include_top=False)
    model = keras.Sequential([vit, keras.layers.Dense(2, name="mine")])
    model.build((None, 16, 24, 3))
    assert keras_vit.freeze(model) == 12 * 2 + 2


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "up_to, trained", [("head", {"after"}), (2, {"encoderblock_2", "encoder_norm", "after"})]
)
def test_layers_before_the_model_are_frozen(up_to, trained):
    vit = _vit(include_top=False)
    before = keras.layers.Conv2D(3, 1, name="before")
    after = keras.layers.Dense(2, name="after")
    model = keras.Sequential([keras.Input((16, 24, 5)), before, vit, after])
    keras_vit.freeze(model, up_to=up_to, write=_quiet)
    paths = [variable.path.split("/") for variable in model.trainable_variables]
    # Paths may start with the names of the two models.
    layer_names = [
        next(name for name in path if name not in (vit.name, model.name)) for path in paths
    ]
    assert set(layer_names) == trained


def test_lora_trains_only_adapters_and_head():
    model = _vit()
    images = random_images((4, 16, 24, 3))
    before = to_numpy(model(images))
    count = keras_vit.enable_lora(model, 2, ("query", "value", "mlp_1"), write=_quiet)
    # Keras' adapter of a kernel of shape (D, heads, D/heads) has these parameters.
    query = 12 * 3 * 2 + 2 * 4
    assert count == 3 * (2 * query + 2 * (12 + 20)) + 12 * 4 + 4
    # New adapters add zero.
    np.testing.assert_allclose(model(images), before, atol=1e-6)
    _assert_training_keeps(model.non_trainable_variables, model)
    adapter = model.get_layer("encoderblock_0").attention.query.lora_kernel_b
    assert to_numpy(adapter).any()


def test_saved_lora_model_has_plain_weights(tmp_path):
    model = _vit()
    keras_vit.enable_lora(model, 2, write=_quiet)
    model.get_layer("encoderblock_0").attention.query.lora_kernel_b.assign(np.ones((2, 4)))
    with pytest.raises(ValueError, match="Checkpoints do not support LoRA adapters"):
        keras_vit.checkpoints.save(model, tmp_path / "model.npz")
    loaded = _reloaded(model, tmp_path)
    images = random_images((4, 16, 24, 3))
    np.testing.assert_allclose(loaded(images), model(images), atol=1e-5)
    keras_vit.checkpoints.save(loaded, tmp_path / "model.npz")


def test_rejects_second_adapters():
    model = _vit()
    keras_vit.enable_lora(model, 2, write=_quiet)
    with pytest.raises(ValueError, match="must not have adapters already"):
        keras_vit.enable_lora(model, 2, write=_quiet)


def _trained(model):
    """Returns the indices of the trainable weights."""
    trainable = {id(variable) for variable in model.trainable_variables}
    return [i for i, weight in enumerate(model.weights) if id(weight) in trainable]


def _wrapped():
    vit = _vit(include_top=False)
    return keras.Sequential(
        [keras.Input((16, 24, 3)), keras.layers.Conv2D(3, 1), vit, keras.layers.Dense(2)]
    )


def _backbone():
    return keras_vit.backbone(_vit(), layers=[1, 3], strides=[4, 8])


def _bit():
    return keras_vit.BiTResNet(depth=8, width=32, input_shape=(16, 24, 3), classes=3)


@pytest.mark.one_backend
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("build", [_vit, _wrapped, _backbone, _bit])
def test_unfreezing_trains_everything(build, saved, tmp_path):
    model = build()
    assert _trained(model) == list(range(len(model.weights)))
    if build is _bit:
        model.resnet.trainable = False
    else:
        keras_vit.freeze(model, write=_quiet)
    frozen_up_to_head = _trained(model)
    # The kernel and the bias of the last layer.
    assert len(frozen_up_to_head) == 2
    if saved:
        model = _reloaded(model, tmp_path)
    assert _trained(model) == frozen_up_to_head
    count = keras_vit.unfreeze(model, write=_quiet)
    assert _trained(model) == list(range(len(model.weights)))
    assert count == model.count_params()


@pytest.mark.parametrize("saved", [False, True])
def test_freezing_twice_equals_the_last_call(saved, tmp_path):
    model = _vit()
    keras_vit.freeze(model, up_to=2, write=_quiet)
    if saved:
        model = _reloaded(model, tmp_path)
    keras_vit.freeze(model, up_to=1, write=_quiet)
    assert _trainable_layers(model) == {"encoderblock_1", "encoderblock_2", "encoder_norm", "head"}


@pytest.mark.parametrize("saved", [False, True])
def test_partly_frozen_layers_stay_frozen_until_unfreezing(saved, tmp_path):
    model = _vit()
    model.blocks[1].attention.trainable = False
    trained = _trained(model)
    # The attention has four projections with biases.
    assert len(trained) == len(model.weights) - 8
    if saved:
        model = _reloaded(model, tmp_path)
    assert _trained(model) == trained
    keras_vit.unfreeze(model, write=_quiet)
    assert len(model.trainable_variables) == len(model.weights)


def test_loaded_lora_model_trains_only_the_head(tmp_path):
    model = _vit()
    keras_vit.enable_lora(model, 2, write=_quiet)
    # Three blocks have two adapters of two matrices each. The head has a kernel and a bias.
    count = 3 * 2 * 2 + 2
    assert len(model.trainable_variables) == count
    loaded = _reloaded(model, tmp_path)
    assert _trainable_layers(loaded) == {"head"}
    _assert_training_keeps(loaded.non_trainable_variables, loaded)
    keras_vit.enable_lora(loaded, 2, write=_quiet)
    assert len(loaded.trainable_variables) == count
    keras_vit.unfreeze(loaded, write=_quiet)
    assert len(loaded.trainable_variables) == len(loaded.weights)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (keras_vit.freeze, {"up_to": 4}, "Received: layer=4"),
        (keras_vit.freeze, {"up_to": "tail"}, "Received: up_to='tail'"),
        (keras_vit.enable_lora, {"rank": 0}, "Received: rank=0"),
        (
            keras_vit.enable_lora,
            {"rank": 1, "targets": ("head",)},
            r"Received: targets=\('head',\)",
        ),
    ],
)
def test_bad_arguments_leave_the_model_trainable(function, arguments, message):
    model = _vit()
    with pytest.raises(ValueError, match=message):
        function(model, **arguments)
    assert len(model.trainable_variables) == len(model.weights)


@pytest.mark.one_backend
def test_lora_freezes_relative_positions():
    model = _vit(position_embedding="relative")
    count = keras_vit.enable_lora(model, 2, write=_quiet)
    # Two adapters in each of three blocks, and the head.
    assert count == 3 * 2 * (12 * 3 * 2 + 2 * 4) + 12 * 4 + 4
