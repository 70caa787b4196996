import keras
import numpy as np
import pytest

import keras_vit

from ..shared import THREE_LAYERS, random_images

# With jit_compile=False, JAX compiles each operation separately.
JIT = keras.backend.backend() == "jax"
MODEL = {**THREE_LAYERS, "input_shape": (16, 24, 3)}


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
def test_freeze_keeps_weights_and_counts_trainable_parameters(up_to, trained):
    model = keras_vit.VisionTransformer(**MODEL)
    lines = []
    count = keras_vit.freeze(model, up_to=up_to, write=lines.append)
    assert _trainable_layers(model) == trained
    assert count == sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert lines == [f"{count:,} of {model.count_params():,} parameters are trainable"]
    if up_to != 2:  # training one case is enough
        return
    before = [np.array(weight) for weight in model.get_layer("embedding").weights]
    model.compile("sgd", "mse", jit_compile=JIT)
    model.fit(np.ones((2, 16, 24, 3), "float32"), np.ones((2, 4)), verbose=0)
    for old, new in zip(before, model.get_layer("embedding").weights):
        np.testing.assert_array_equal(old, new)


def test_wrapped_model_trains_the_outer_layers():
    vit = keras_vit.VisionTransformer(**MODEL, include_top=False)
    model = keras.Sequential([vit, keras.layers.Dense(2, name="mine")])
    model.build((None, 16, 24, 3))
    assert keras_vit.freeze(model) == 12 * 2 + 2


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "up_to, trained", [("head", {"after"}), (2, {"encoderblock_2", "encoder_norm", "after"})]
)
def test_layers_before_the_model_are_frozen(up_to, trained):
    vit = keras_vit.VisionTransformer(**MODEL, include_top=False)
    before = keras.layers.Conv2D(3, 1, name="before")
    after = keras.layers.Dense(2, name="after")
    model = keras.Sequential([keras.Input((16, 24, 5)), before, vit, after])
    keras_vit.freeze(model, up_to=up_to, write=lambda line: None)
    paths = [variable.path.split("/") for variable in model.trainable_variables]
    assert {
        next(part for part in path if part not in (vit.name, model.name)) for path in paths
    } == trained


def test_lora_trains_adapters_and_saves_plain_weights(tmp_path):
    model = keras_vit.VisionTransformer(**MODEL)
    lines = []
    images = random_images((4, 16, 24, 3))
    untouched = np.array(model(images))
    count = keras_vit.enable_lora(model, 2, ("query", "value", "mlp_1"), write=lines.append)
    # Parameters of Keras' adapter for a kernel of shape (D, heads, D/heads).
    query = 12 * 3 * 2 + 2 * 4
    assert count == 3 * (2 * query + 2 * (12 + 20)) + 12 * 4 + 4
    np.testing.assert_allclose(model(images), untouched, atol=1e-6)  # new adapters add zero
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=JIT)
    frozen = {v.path: np.array(v) for v in model.non_trainable_variables}
    model.fit(images, np.ones((4, 4)), epochs=2, verbose=0)
    for variable in model.non_trainable_variables:
        np.testing.assert_array_equal(frozen[variable.path], variable)
    assert (
        np.abs(np.array(model.get_layer("encoderblock_0").attention.query.lora_kernel_b)).max() > 0
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(images), model(images), atol=1e-5)
    with pytest.raises(ValueError, match="Checkpoints do not support LoRA adapters"):
        keras_vit.checkpoints.save(model, tmp_path / "model.npz")
    keras_vit.checkpoints.save(loaded, tmp_path / "model.npz")
    with pytest.raises(ValueError, match="must not have adapters already"):
        keras_vit.enable_lora(model, 2, write=lines.append)


def _quiet(line):
    """Ignores the line with the number of parameters."""


def _reloaded(model, tmp_path):
    model.save(tmp_path / "saved.keras")
    return keras.models.load_model(tmp_path / "saved.keras")


def _trained(model):
    """Returns the positions of the trainable weights."""
    trained = set(map(id, model.trainable_variables))
    return [i for i, weight in enumerate(model.weights) if id(weight) in trained]


def _wrapped():
    vit = keras_vit.VisionTransformer(**MODEL, include_top=False)
    return keras.Sequential(
        [keras.Input((16, 24, 3)), keras.layers.Conv2D(3, 1), vit, keras.layers.Dense(2)]
    )


def _backbone():
    return keras_vit.backbone(keras_vit.VisionTransformer(**MODEL), layers=[1, 3], strides=[4, 8])


def _bit():
    return keras_vit.BiTResNet(depth=8, width=32, input_shape=(16, 24, 3), classes=3)


@pytest.mark.one_backend
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
    "build", [lambda: keras_vit.VisionTransformer(**MODEL), _wrapped, _backbone, _bit]
)
def test_unfreezing_trains_everything(build, saved, tmp_path):
    model = build()
    assert _trained(model) == list(range(len(model.weights)))
    if build is _bit:
        model.resnet.trainable = False
    else:
        keras_vit.freeze(model, write=_quiet)
    last = _trained(model)
    assert len(last) == 2  # the kernel and the bias
    model = _reloaded(model, tmp_path) if saved else model
    assert _trained(model) == last
    count = keras_vit.unfreeze(model, write=_quiet)
    assert _trained(model) == list(range(len(model.weights)))
    assert count == model.count_params()


@pytest.mark.parametrize("saved", [False, True])
def test_freezing_twice_equals_the_last_call(saved, tmp_path):
    model = keras_vit.VisionTransformer(**MODEL)
    keras_vit.freeze(model, up_to=2, write=_quiet)
    model = _reloaded(model, tmp_path) if saved else model
    keras_vit.freeze(model, up_to=1, write=_quiet)
    assert _trainable_layers(model) == {"encoderblock_1", "encoderblock_2", "encoder_norm", "head"}


@pytest.mark.parametrize("saved", [False, True])
def test_partly_frozen_layers_stay_frozen_until_unfreezing(saved, tmp_path):
    model = keras_vit.VisionTransformer(**MODEL)
    model.blocks[1].attention.trainable = False
    trained = _trained(model)
    assert len(trained) == len(model.weights) - 8  # four projections with biases
    model = _reloaded(model, tmp_path) if saved else model
    assert _trained(model) == trained
    keras_vit.unfreeze(model, write=_quiet)
    assert len(model.trainable_variables) == len(model.weights)


def test_loaded_lora_model_trains_only_the_head(tmp_path):
    model = keras_vit.VisionTransformer(**MODEL)
    keras_vit.enable_lora(model, 2, write=_quiet)
    assert len(model.trainable_variables) == 2 * 2 * 3 + 2
    loaded = _reloaded(model, tmp_path)
    assert _trainable_layers(loaded) == {"head"}
    frozen = [np.array(variable) for variable in loaded.non_trainable_variables]
    loaded.compile("sgd", "mse", jit_compile=JIT)
    loaded.fit(np.ones((2, 16, 24, 3), "float32"), np.ones((2, 4)), verbose=0)
    for old, new in zip(frozen, loaded.non_trainable_variables, strict=True):
        np.testing.assert_array_equal(old, new)
    keras_vit.enable_lora(loaded, 2, write=_quiet)
    assert len(loaded.trainable_variables) == 2 * 2 * 3 + 2
    keras_vit.unfreeze(loaded, write=_quiet)
    assert len(loaded.trainable_variables) == len(loaded.weights)


def test_bad_requests_leave_the_model_trainable():
    model = keras_vit.VisionTransformer(**MODEL)
    for match, call in (
        ("Received: layer=4", lambda: keras_vit.freeze(model, up_to=4)),
        ("Received: up_to='tail'", lambda: keras_vit.freeze(model, up_to="tail")),
        ("Received: rank=0", lambda: keras_vit.enable_lora(model, 0)),
        (r"Received: targets=\('head',\)", lambda: keras_vit.enable_lora(model, 1, ("head",))),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    assert len(model.trainable_variables) == len(model.weights)


@pytest.mark.one_backend
def test_lora_freezes_relative_positions():
    model = keras_vit.VisionTransformer(**MODEL, position_embedding="relative")
    count = keras_vit.enable_lora(model, 2, write=lambda line: None)
    assert count == 3 * 2 * (12 * 3 * 2 + 2 * 4) + 12 * 4 + 4
