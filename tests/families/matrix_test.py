"""Tests of the library's features on tiny models of most families, loaded from golden files."""

import importlib.util

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, evaluation, export, inspection

from ..shared import SIZES, assert_close, images_for, randomize
from ..training import small_run
from .golden_cases import write_case

# Models with attention pooling, a norm before the blocks, two class tokens, SwiGLU, registers, and
# rotary positions of both styles.
CASES = (
    "siglip",
    "clip",
    "timm_deit_distilled",
    "timm_eva02_separate",
    "dinov2_registers",
    "dinov3",
)
tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exports need TensorFlow"
)


@pytest.fixture(scope="module", params=CASES)
def folder(request, tmp_path_factory):
    """Returns a folder with the weights of a case and its config.json, if it has one."""
    return write_case(request.param, tmp_path_factory.mktemp("golden"))


def load_with_new_head(folder, **arguments):
    """Loads a model and gives it a random head of 10 classes."""
    model = keras_vit.from_pretrained(
        folder, head="new", include_top=True, classes=10, num_heads=3, **arguments
    )
    randomize(model.head, 0.3)
    return model


@pytest.fixture(scope="module")
def model(folder):
    return load_with_new_head(folder)


@pytest.fixture(scope="module")
def images(model):
    return images_for(model, seed=1)


def test_model_has_features(model, images):
    tokens = keras_vit.features(model, images, tokens="all")
    assert tokens.shape == (2, model.num_tokens, 24)
    if model.class_token is not None:
        assert_close(keras_vit.features(model, images), tokens[:, 0])
    grids = keras_vit.features(model, images, layers=[1, 3], tokens="patch", grid=True)
    assert [grid.shape for grid in grids] == [(2, *model.grid, 24)] * 2
    pooled = keras_vit.features(model, images, tokens="pooled")
    assert_close(model.head(pooled), model(images))


def test_model_has_attention_scores_and_maps(model, images):
    (scores,) = inspection.attention_scores(model, images, layers=[3])
    assert scores.shape == (2, 3, model.num_tokens, model.num_tokens)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    assert inspection.attention_maps(model, images).shape[:3] == images.shape[:3]
    for patch in (None, (0, 1)):
        rollout, attention = inspection.token_attention(model, images, patch)
        assert rollout.shape == attention.shape == (2, *model.grid)


def fit(model, images, learning_rate, epochs=1):
    """Trains a model on two labels and returns the losses."""
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(learning_rate), loss)
    labels = np.eye(10)[[1, 2]]
    return model.fit(images, labels, epochs=epochs, verbose=0).history["loss"]


@pytest.mark.full
def test_remat_keeps_the_losses(folder, images):
    plain = load_with_new_head(folder)
    with_remat = load_with_new_head(folder, remat=True)
    expected = fit(plain, images, 0.01, epochs=2)
    assert_close(fit(with_remat, images, 0.01, epochs=2), expected, 1e-4)


@pytest.mark.full
def test_lora_starts_from_the_model_and_trains(folder, images):
    model = load_with_new_head(folder)
    before = np.array(model(images))
    keras_vit.enable_lora(model, 2, write=lambda line: None)
    assert_close(model(images), before)
    fit(model, images, 0.1)
    assert np.abs(np.array(model(images)) - before).max() > 1e-3


@pytest.mark.full
@pytest.mark.parametrize("folder", ["timm_deit_distilled", "dinov3"], indirect=True)
def test_run_starts_from_weights(folder, model, tmp_path):
    lines = []
    result = small_run.start(
        "alone",
        tmp_path,
        lines.append,
        model={name: model.arguments[name] for name in SIZES},
        data=data.defaults(name="digits", image_size=model.image_shape[0]),
        weights=str(folder),
        batch_size=64,
        total_steps=3,
        optimizer={"name": "adamw", "layer_decay": 0.5},
    )
    (report,) = [line for line in lines if "arrays loaded" in line]
    assert "newly initialized: head/kernel" in report
    metrics = evaluation.evaluate(result.model, ["knn"], result.inputs)
    assert metrics["knn/accuracy"] > 0.2  # chance is 0.1


@tensorflow_only
@pytest.mark.full
def test_exports_match_the_model(folder, images, tmp_path):
    model = load_with_new_head(folder, preprocessing=keras_vit.Preprocessing())
    export.saved_model(model, str(tmp_path / "saved"), version=1, signatures=("tensor",))
    np.testing.assert_array_equal(export.load(tmp_path / "saved/1")(images), model(images))
    assert export.litert(model, tmp_path / "model.tflite").largest_difference < 1e-4
    if all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime"))):
        assert export.onnx(model, tmp_path / "model.onnx").largest_difference < 1e-4
