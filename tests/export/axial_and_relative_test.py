"""Tests of exported models with axial attention, relative or learned 2D positions, or masked-patch
pre-training."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from ml_collections import ConfigDict

import keras_vit
from keras_vit import checkpoints, export, recipes, tasks
from keras_vit.tpu.inputs import InputShapes

from ..shared import SIZES, random_images, randomize
from .conftest import formats

SHAPE = (8, 12, 3)
VIT = {**SIZES, "num_layers": 2}
IMAGES = random_images((3, *SHAPE), seed=1)


def masked_then_finetuned(tmp_path):
    """Returns a classifier with a random head and the weights of a masked-patch model."""
    config = ConfigDict(recipes.defaults(task="masked_patches", model=VIT))
    pretrained = randomize(tasks.get(config).build_model(InputShapes(SHAPE, 5)))
    checkpoints.save(pretrained, tmp_path / "pretrained.npz")
    model = tasks.get(ConfigDict(recipes.defaults(model=VIT))).build_model(InputShapes(SHAPE, 5))
    checkpoints.load(model, str(tmp_path / "pretrained.npz"), head="new")
    randomize(model.get_layer("head"))
    return model


ARCHITECTURES = {
    "axial": (keras_vit.AxialVisionTransformer, {}),
    "relative": (keras_vit.VisionTransformer, {"position_embedding": "relative"}),
    "learned2d": (
        keras_vit.VisionTransformer,
        {"position_embedding": "learned2d", "position_embedding_at": "every_layer_shared"},
    ),
}
NAMES = [*ARCHITECTURES, "masked_patches"]


def make_model(name, tmp_path):
    if name == "masked_patches":
        return masked_then_finetuned(tmp_path)
    constructor, changes = ARCHITECTURES[name]
    return randomize(constructor(**VIT, input_shape=SHAPE, classes=5, **changes))


@pytest.mark.parametrize(
    "name",
    [
        "axial",
        "masked_patches",
        pytest.param("relative", marks=pytest.mark.slow),
        pytest.param("learned2d", marks=pytest.mark.slow),
    ],
)
def test_saved_model_round_trips(name, tmp_path):
    model = make_model(name, tmp_path)
    path = export.saved_model(
        model, tmp_path / "served", class_names="abcde", signatures=("tensor",)
    )
    outputs = tf.saved_model.load(path).signatures["tensor"](images=tf.constant(IMAGES))
    expected = keras.ops.softmax(model(IMAGES))
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
    assert np.ptp(expected, axis=0).max() > 1e-3  # the outputs differ between images
    np.testing.assert_array_equal(export.load(path)(IMAGES), model(IMAGES))
    card = json.loads(Path(path, "assets.extra/model_card.json").read_text(encoding="utf-8"))
    assert card["architecture"]["parameters"] == model.count_params()


@pytest.mark.slow
@formats
@pytest.mark.parametrize("name", NAMES)
def test_other_formats_match_logits(name, format_name, ending, tmp_path):
    model = make_model(name, tmp_path)
    report = getattr(export, format_name)(model, tmp_path / f"model.{ending}")
    assert report.largest_difference < 1e-4 * report.logits_range
