"""Tests of `freeze`, `unfreeze` and `enable_lora`."""

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import THREE_LAYERS, images_for

MODEL = {**THREE_LAYERS, "input_shape": (16, 24, 3)}


def _vit(**arguments):
    return keras_vit.VisionTransformer(**MODEL, **arguments)


def _quiet(line):
    """Ignores the line with the number of parameters."""


def _reloaded(model, tmp_path):
    model.save(tmp_path / "saved.keras")
    return keras.models.load_model(tmp_path / "saved.keras")


def _trainable_layers(model):
    return {variable.path.split("/")[0] for variable in model.trainable_variables}


def _trainable_weights(model):
    """Returns whether each weight is trainable."""
    trainable = {id(variable) for variable in model.trainable_variables}
    return [id(weight) in trainable for weight in model.weights]


@pytest.mark.parametrize(
    ("up_to", "trained"),
    [
        (0, {"encoderblock_0", "encoderblock_1", "encoderblock_2", "encoder_norm", "head"}),
        (2, {"encoderblock_2", "encoder_norm", "head"}),
        (-1, {"encoder_norm", "head"}),
        ("head", {"head"}),
    ],
)
def test_freeze_selects_layers_and_counts_their_parameters(up_to, trained):
    model = _vit()
    lines = []
    count = keras_vit.freeze(model, up_to=up_to, write=lines.append)
    assert _trainable_layers(model) == trained
    assert count == sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    assert lines == [f"{count:,} of {model.count_params():,} parameters are trainable"]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("up_to", "trained"), [("head", {"after"}), (2, {"encoderblock_2", "encoder_norm", "after"})]
)
def test_layers_before_the_model_are_frozen(up_to, trained):
    vit = _vit(include_top=False)
    before = keras.layers.Conv2D(3, 1, name="before")
    after = keras.layers.Dense(2, name="after")
    model = keras.Sequential([keras.Input((16, 24, 5)), before, vit, after])
    keras_vit.freeze(model, up_to=up_to, write=_quiet)
    layers = (before, *vit.layers, after)
    assert {layer.name for layer in layers if layer.trainable_variables} == trained


def test_lora_trains_only_adapters_and_head():
    model = _vit(position_embedding="relative")
    count = keras_vit.enable_lora(model, 2, ("query", "value", "mlp_1"), write=_quiet)
    # Keras' adapter of a kernel of shape (D, heads, D/heads) has these parameters.
    query = 12 * 3 * 2 + 2 * 4
    assert count == 3 * (2 * query + 2 * (12 + 20)) + 12 * 4 + 4
    with pytest.raises(ValueError, match="must not have adapters already"):
        keras_vit.enable_lora(model, 2, write=_quiet)


def test_saved_lora_model_has_plain_weights_and_trains_only_the_head(tmp_path):
    model = _vit()
    keras_vit.enable_lora(model, 2, write=_quiet)
    model.blocks[0].attention.query.lora_kernel_b.assign(np.ones((2, 4)))
    with pytest.raises(ValueError, match="do not support LoRA adapters"):
        keras_vit.checkpoints.save(model, tmp_path / "model.npz")
    loaded = _reloaded(model, tmp_path)
    images = images_for(model)
    np.testing.assert_allclose(loaded(images), model(images), atol=1e-5)
    assert _trainable_layers(loaded) == {"head"}
    keras_vit.checkpoints.save(loaded, tmp_path / "model.npz")


@pytest.mark.one_backend
def test_saved_lora_model_takes_new_adapters(tmp_path):
    model = _vit()
    count = keras_vit.enable_lora(model, 2, write=_quiet)
    loaded = _reloaded(model, tmp_path)
    assert keras_vit.enable_lora(loaded, 2, write=_quiet) == count
    keras_vit.unfreeze(loaded, write=_quiet)
    assert all(_trainable_weights(loaded))


def _backbone():
    return keras_vit.backbone(_vit(), layers=[1, 3], strides=[2, 8])


def _bit():
    return keras_vit.BiTResNet(depth=8, width=32, input_shape=(16, 24, 3), classes=3)


@pytest.mark.one_backend
@pytest.mark.parametrize("build", [_vit, _backbone, _bit])
def test_unfreezing_trains_everything(build, tmp_path):
    model = build()
    if build is _bit:
        model.resnet.trainable = False
    else:
        keras_vit.freeze(model, write=_quiet)
    is_trainable = _trainable_weights(model)
    # The kernels, biases and norms after the backbone, or the kernel and the bias of the head.
    assert sum(is_trainable) == (6 if build is _backbone else 2)
    for frozen in (_reloaded(model, tmp_path), model):
        assert _trainable_weights(frozen) == is_trainable
        count = keras_vit.unfreeze(frozen, write=_quiet)
        assert count == frozen.count_params()
        assert all(_trainable_weights(frozen))


def test_freezing_again_replaces_the_first_call(tmp_path):
    model = _vit()
    keras_vit.freeze(model, up_to=2, write=_quiet)
    for frozen in (_reloaded(model, tmp_path), model):
        keras_vit.freeze(frozen, up_to=1, write=_quiet)
        trained = {"encoderblock_1", "encoderblock_2", "encoder_norm", "head"}
        assert _trainable_layers(frozen) == trained


@pytest.mark.parametrize(
    ("build", "select_frozen", "num_frozen"),
    [
        (_vit, lambda model: model.blocks[1].attention, 8),  # four projections with biases
        (_backbone, lambda model: model.necks[0].get_layer("norm_1"), 2),
        (_backbone, lambda model: model.necks[0], 6),
    ],
    ids=["attention", "norm of a neck", "neck"],
)
def test_partly_frozen_models_stay_frozen_until_unfreezing(
    build, select_frozen, num_frozen, tmp_path
):
    model = build()
    select_frozen(model).trainable = False
    is_trainable = _trainable_weights(model)
    assert is_trainable.count(False) == num_frozen
    for frozen in (_reloaded(model, tmp_path), model):
        assert _trainable_weights(frozen) == is_trainable
        keras_vit.unfreeze(frozen, write=_quiet)
        assert all(_trainable_weights(frozen))


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (keras_vit.freeze, {"up_to": 4}, "up_to=4"),
        (keras_vit.freeze, {"up_to": "tail"}, "block number or 'head'"),
        (keras_vit.enable_lora, {"rank": 0}, "rank=0"),
        (keras_vit.enable_lora, {"rank": 1, "targets": ("head",)}, "`targets` must be some of"),
    ],
)
def test_bad_arguments_leave_the_model_trainable(function, arguments, message):
    model = _vit()
    with pytest.raises(ValueError, match=message):
        function(model, **arguments)
    assert all(_trainable_weights(model))
