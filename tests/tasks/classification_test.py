"""Tests of the classification task."""

import types

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

from keras_vit import Preprocessing, families, losses, recipes, tasks

from ..shared import (
    GOLDEN,
    GOLDEN_SIZES,
    SIZES,
    assert_close,
    random_images,
    randomize_head,
    to_numpy,
)

RESNET = {"depth": 26, "width_factor": 1}


def _inputs(image_shape=(8, 12, 3), classes=5, empty_is_negative=True):
    """Returns a stand-in for `InputPipeline` with the attributes that a task uses."""
    names = tuple(map(str, range(classes)))
    return types.SimpleNamespace(
        image_shape=image_shape,
        train=types.SimpleNamespace(class_names=names, empty_is_negative=empty_is_negative),
        model_preprocessing=Preprocessing,
    )


def _task(architecture="VisionTransformer", **changes):
    model = {"VisionTransformer": SIZES, "BiTResNet": RESNET}.get(architecture, {})
    fields = {"architecture": architecture, "model": model, **changes}
    return tasks.get(ConfigDict(recipes.defaults(**fields)))


def _accuracy(logits, labels, training, **changes):
    """Returns the accuracy of each example, for a model that returns its inputs as logits."""
    identity = keras.Sequential([keras.Input((5,)), keras.layers.Identity()])
    batch = np.array(logits, "float32"), np.array(labels, "float32"), None
    _, metrics = _task(**changes).losses_and_metrics(identity, batch, training=training)
    return to_numpy(metrics["accuracy"]).tolist()


@pytest.mark.parametrize("loss", losses.LOSSES)
def test_loss_is_that_of_the_config(loss):
    task = _task(loss=loss)
    model = randomize_head(task.build_model(_inputs()))
    images = random_images((2, 8, 12, 3))
    labels = np.array([[0, 1, 0, 0, 0], [0, 0, 0.25, 0.75, 0]], "float32")
    result, metrics = task.losses_and_metrics(model, (images, labels, None))
    assert_close(result, losses.get(loss)(labels, model(images)))
    assert list(metrics) == list(task.metrics) == ["accuracy"]


@pytest.mark.parametrize(
    "training, expected", [(False, [1, 1, 1, 1, 1, 0]), (True, [1, 1, 1, 0, 0, 0])]
)
def test_accuracy_accepts_several_labels(training, expected):
    """Evaluation accepts any label above 0, as ReaL does. Training accepts only labels with the
    largest value."""
    logits = np.eye(5)[[0, 4, 3, 2, 2, 1]]
    labels = [*2 * [[1, 0, 0, 0, 1]], *4 * [[0, 0, 0.25, 0.75, 0]]]
    assert _accuracy(logits, labels, training) == expected


@pytest.mark.parametrize("loss, expected", [("sigmoid", [1, 0]), ("softmax", [0, 0])])
def test_no_class_is_right_if_no_logit_is_positive(loss, expected):
    logits = [[-1] * 5, [-1, 2, -1, -1, -1]]
    assert _accuracy(logits, np.zeros((2, 5)), training=False, loss=loss) == expected


def test_images_without_the_only_class_are_negative_examples():
    model = _task(loss="sigmoid").build_model(_inputs(classes=1))
    assert model.output_shape == (None, 1)


@pytest.mark.parametrize("loss, empty_is_negative", [("softmax", True), ("sigmoid", False)])
def test_one_class_without_negative_examples_is_refused(loss, empty_is_negative):
    inputs = _inputs(classes=1, empty_is_negative=empty_is_negative)
    with pytest.raises(ValueError, match="at least two classes"):
        _task(loss=loss).build_model(inputs)


def test_image_shape_comes_from_data_or_config():
    assert _task().build_model(_inputs((4, 16, 1))).input_shape == (None, 4, 16, 1)
    fixed = _task(model={**SIZES, "input_shape": (8, 8, 3)})
    assert fixed.build_model(_inputs((4, 16, 1))).input_shape == (None, 8, 8, 3)


@pytest.mark.one_backend
def test_architecture_selects_model():
    model = _task("BiTResNet").build_model(_inputs((32, 48, 3)))
    assert model.output_shape == (None, 5) and model.name == "bit_resnet"


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "architecture, changes, message",
    [
        ("BiTResNet", {"remat": True}, "without Transformer blocks"),
        ("ViT-B/16", {"model": {"num_layers": 2}}, "num_layers` must be 12 for ViT-B/16"),
        ("VisionTransformer", {"loss": "hinge"}, "`loss` must be one of"),
        ("VisionTransformer", {"task": "detection"}, "`task` must be one of"),
    ],
)
def test_rejects_invalid_fields(architecture, changes, message):
    with pytest.raises(ValueError, match=message):
        _task(architecture, **changes)


@pytest.mark.one_backend
@pytest.mark.parametrize("architecture", ["DINOv3-S/16", "EVA02-Ti/14"])
def test_sizes_may_have_dicts_as_arguments(architecture):
    sizes = families.model_config(architecture)["model"]
    assert isinstance(sizes["rotary"], dict)
    assert _task(architecture, model=sizes).config.model.rotary.to_dict() == sizes["rotary"]


def test_rejects_fields_of_another_architecture():
    config = ConfigDict(recipes.defaults())
    config.model = RESNET
    with pytest.raises(ValueError, match="does not have. Received: depth"):
        tasks.get(config)


HF_TOKEN = str(GOLDEN / "hf_token.safetensors")
SIZES_OF_WEIGHTS = {name: GOLDEN_SIZES[name] for name in SIZES}


@pytest.mark.one_backend
def test_weights_set_fields_left_at_defaults():
    task = _task(model={**SIZES_OF_WEIGHTS, "epsilon": 1e-12}, weights=HF_TOKEN)
    model = task.build_model(_inputs((32, 32, 3)))
    assert model.arguments["exact_gelu"] and model.arguments["epsilon"] == 1e-12
    weights = str(GOLDEN / "bigvision_map.ckpt.npz")
    model = _task(model=SIZES_OF_WEIGHTS, weights=weights).build_model(_inputs((32, 32, 3)))
    assert model.classifier == "map"


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "architecture, model, message",
    [
        ("VisionTransformer", {**SIZES_OF_WEIGHTS, "epsilon": 1e-5}, "epsilon` must be 1e-12"),
        ("VisionTransformer", {**SIZES_OF_WEIGHTS, "hidden_size": 32}, "hidden_size` must be 64"),
        ("BiTResNet", RESNET, "must be VisionTransformer"),
    ],
)
def test_fields_must_match_weights(architecture, model, message):
    task = _task(architecture, model=model, weights=HF_TOKEN)
    with pytest.raises(ValueError, match=message):
        task.build_model(_inputs())
