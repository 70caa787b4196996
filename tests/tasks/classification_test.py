"""Tests of the classification task."""

import types

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

from keras_vit import Preprocessing, recipes, tasks

from ..shared import GOLDEN, SIZES, random_images, randomize_head

RESNET = {"depth": 26, "width_factor": 1}


def _inputs(image_shape=(8, 12, 3), classes=5):
    """Returns a stand-in for `InputPipeline` with the attributes that a task uses."""
    return types.SimpleNamespace(
        image_shape=image_shape,
        train=types.SimpleNamespace(class_names=tuple(map(str, range(classes)))),
        model_preprocessing=Preprocessing,
    )


def _task(architecture="VisionTransformer", **changes):
    model = {"VisionTransformer": SIZES, "BiTResNet": RESNET}.get(architecture, {})
    return tasks.get(
        ConfigDict(recipes.defaults(architecture=architecture, **{"model": model, **changes}))
    )


def _batch(labels):
    images = random_images((len(labels), 8, 12, 3))
    return images, np.array(labels, "float32"), np.ones(len(labels), "float32")


# In order, the rows have one label, a mixture of two labels, two labels, and no label.
LABELS = [[0, 1, 0, 0, 0], [0, 0, 0.25, 0.75, 0], [1, 0, 0, 0, 1], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_losses_and_accuracy_match_numpy(loss, training):
    task = _task(loss=loss)
    model = randomize_head(task.build_model(_inputs()))
    batch = _batch(LABELS)
    images, labels, _ = batch
    losses, metrics = task.losses_and_metrics(model, batch, training=training)
    logits = keras.ops.convert_to_numpy(model(images)).astype("float64")
    if loss == "softmax":
        expected = -(labels * (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))).sum(-1)
    else:
        expected = (np.log1p(np.exp(logits)) - labels * logits).sum(-1)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(losses), expected, rtol=1e-5, atol=1e-6)
    assert list(metrics) == list(task.metrics) == ["accuracy"]
    right = keras.ops.convert_to_numpy(metrics["accuracy"])
    label_of_prediction = labels[np.arange(len(labels)), logits.argmax(-1)]
    least = labels.max(-1) if training else 1e-9
    none = (loss == "sigmoid") & (labels.max(-1) == 0) & (logits.max(-1) <= 0)
    np.testing.assert_array_equal(
        right, (label_of_prediction > 0) & (label_of_prediction >= least) | none
    )


def test_accuracy_accepts_several_labels():
    """Evaluation accepts any label above 0, as ReaL does. Training accepts only labels with the
    largest value."""
    # The model returns its inputs as logits.
    identity = keras.Sequential([keras.Input((5,)), keras.layers.Identity()])
    logits = 9.0 * np.eye(5, dtype="float32")[[0, 4, 3, 2, 2, 1]]
    labels = np.array([[1, 0, 0, 0, 1], [1, 0, 0, 0, 1], *4 * [[0, 0, 0.25, 0.75, 0]]], "float32")
    for training, expected in ((False, [1, 1, 1, 1, 1, 0]), (True, [1, 1, 1, 0, 0, 0])):
        _, metrics = _task().losses_and_metrics(
            identity, (logits, labels, np.ones(6)), training=training
        )
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(metrics["accuracy"]), expected)


@pytest.mark.parametrize(("loss", "expected"), [("sigmoid", [1, 0]), ("softmax", [0, 0])])
def test_no_class_is_right_if_no_logit_is_positive(loss, expected):
    identity = keras.Sequential([keras.Input((5,)), keras.layers.Identity()])
    batch = np.float32([[-1] * 5, [-1, 2, -1, -1, -1]]), np.zeros((2, 5), "float32"), np.ones(2)
    for training in (False, True):
        _, metrics = _task(loss=loss).losses_and_metrics(identity, batch, training=training)
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(metrics["accuracy"]), expected)


def test_one_class_requires_images_without_it():
    inputs = _inputs(classes=1)
    inputs.train.empty_is_negative = True
    assert _task(loss="sigmoid").build_model(inputs).output_shape == (None, 1)
    for loss, inputs.train.empty_is_negative in (("softmax", True), ("sigmoid", False)):
        with pytest.raises(ValueError, match="at least two classes.*Received: classes="):
            _task(loss=loss).build_model(inputs)


def test_image_shape_comes_from_data_or_config():
    assert _task().build_model(_inputs((4, 16, 1))).input_shape == (None, 4, 16, 1)
    fixed = _task(model={**SIZES, "input_shape": (8, 8, 3)})
    model = fixed.build_model(_inputs((4, 16, 1)))
    assert model.input_shape == (None, 8, 8, 3)


@pytest.mark.one_backend
def test_architecture_selects_model():
    task = _task("BiTResNet")
    model = task.build_model(_inputs((32, 48, 3)))
    assert model.output_shape == (None, 5) and model.name == "bit_resnet"
    with pytest.raises(ValueError, match="without Transformer blocks.*remat=True"):
        _task("BiTResNet", remat=True)
    assert _task("ViT-Ti/16").build_model(_inputs((32, 32, 3))).count_params() > 5e6


@pytest.mark.one_backend
def test_error_names_conflicting_size():
    with pytest.raises(
        ValueError,
        match=r"num_layers` must be 12 for ViT-B/16; .*=2",
    ):
        _task("ViT-B/16", model={"num_layers": 2})
    with pytest.raises(ValueError, match="`config.model` has fields that .*Received: depth"):
        tasks.get(ConfigDict({**recipes.defaults(architecture="ViT-B/16"), "model": {"depth": 3}}))


def test_rejects_unknown_loss_or_task():
    with pytest.raises(ValueError, match="`loss` must be one of .*Received: loss='hinge'"):
        _task(loss="hinge")
    with pytest.raises(ValueError, match="one of classification.*task='detection'"):
        tasks.get(ConfigDict(recipes.defaults(task="detection")))


@pytest.mark.one_backend
def test_weights_set_fields_left_at_defaults():
    golden = GOLDEN
    sizes = {"patch_size": 8, "hidden_size": 64, "mlp_dim": 128, "num_heads": 4, "num_layers": 2}
    weights = str(golden / "hf_token.safetensors")
    model = _task(model={**sizes, "epsilon": 1e-12}, weights=weights).build_model(
        _inputs((32, 32, 3))
    )
    assert (
        model.get_layer("encoderblock_0").exact_gelu,
        model.get_layer("encoder_norm").epsilon,
    ) == (True, 1e-12)
    for changes, message in (
        (
            {"epsilon": 1e-5},
            "epsilon` must be 1e-12, .*epsilon=1e-05, weights=",
        ),
        (
            {"hidden_size": 32},
            "hidden_size` must be 64, .*hidden_size=32, weights=",
        ),
        ({"position_embedding": "learned2d"}, "position_embedding` must be learned, .*=learned2d"),
    ):
        with pytest.raises(ValueError, match=message):
            _task(model={**sizes, **changes}, weights=weights).build_model(_inputs())
    with pytest.raises(
        ValueError,
        match="must be VisionTransformer or .*'BiTResNet'",
    ):
        _task("BiTResNet", weights=weights).build_model(_inputs())
    weights = str(golden / "bigvision_map.ckpt.npz")
    model = _task(model=sizes, weights=weights).build_model(_inputs((32, 32, 3)))
    assert type(model.get_layer("pool")).__name__ == "AttentionPooling"
