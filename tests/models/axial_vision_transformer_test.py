"""Tests of Axial-ViT. Axial attention is compared with full attention that is masked to rows or
columns."""

import types

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit import checkpoints, cost, layers, recipes, tasks
from keras_vit.layers.attention import MultiHeadAttention

from ..shared import TWO_LAYERS, random_images, randomize, to_numpy

MODEL = {**TWO_LAYERS, "patch_size": 4, "input_shape": (8, 12, 3)}
IMAGES = random_images((2, 8, 12, 3), seed=1)
ROWS = 2
COLUMNS = 3


def build(**arguments):
    model = keras_vit.AxialVisionTransformer(**{**MODEL, **arguments})
    return randomize(model, 0.5)


@pytest.fixture
def restrict_attention(monkeypatch):
    """Returns a function that limits attention to tokens of the same group.

    Its argument is the group of each token.
    """

    def restrict(groups):
        mask = np.where(groups[:, None] == groups, 0.0, -1e9).astype("float32")

        def scores(self, query, key, dtype=None, real=None):
            query = keras.ops.transpose(query, (0, 2, 1, 3))
            key = keras.ops.transpose(key, (0, 2, 3, 1))
            # 2 is the square root of the head size, 4.
            return keras.ops.softmax(keras.ops.matmul(query, key) / 2.0 + mask, axis=-1)

        monkeypatch.setattr(MultiHeadAttention, "scores", scores)

    return restrict


def test_axial_block_matches_attention_in_rows_and_then_columns(restrict_attention):
    axial = layers.AxialTransformerBlock((ROWS, COLUMNS), num_heads=2, mlp_dim=12)
    tokens = np.random.default_rng(0).normal(size=(3, 6, 8)).astype("float32")
    axial(tokens)
    randomize(axial, 0.5)
    actual = to_numpy(axial(tokens))
    positions = np.arange(ROWS * COLUMNS)
    restrict_attention(positions // COLUMNS)
    x = axial.row(tokens)
    restrict_attention(positions % COLUMNS)
    np.testing.assert_allclose(actual, axial.column(x), atol=1e-5)


@pytest.mark.one_backend
def test_parameters_and_macs_match_hand_calculation():
    # Each layer has two ViT-B blocks of 7,087,872 parameters. On a 14x14 grid, each token attends
    # to 14 tokens.
    build = keras_vit.models.AxialVisionTransformer
    sizes = {"patch_size": 16, "hidden_size": 768, "mlp_dim": 3072, "num_heads": 12, "classes": 10}
    one = cost.build_abstract(build, num_layers=1, **sizes)
    two = cost.build_abstract(build, num_layers=2, **sizes)
    assert two.count_params() - one.count_params() == 2 * 7_087_872
    products = 2 * 196 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 14 * 768)
    assert cost.multiply_accumulates(two) - cost.multiply_accumulates(one) == products


@pytest.mark.one_backend
def test_files_restore_the_model(tmp_path):
    model = build()
    model.save(tmp_path / "model.keras")
    checkpoints.save(model, tmp_path / "model.npz")
    for restored in (
        keras.saving.load_model(tmp_path / "model.keras"),
        keras_vit.AxialVisionTransformer(**MODEL, weights=tmp_path / "model.npz"),
    ):
        np.testing.assert_array_equal(restored(IMAGES), model(IMAGES))


@pytest.mark.one_backend
def test_larger_models_resample_the_positions(tmp_path):
    checkpoints.save(build(), tmp_path / "model.npz")
    report = checkpoints.load(build(input_shape=(16, 16, 3)), tmp_path / "model.npz")
    names = [name.rpartition("/")[2] for name, *_ in report.resampled]
    assert names == ["x_embedding", "y_embedding"]


def test_classification_task_accepts_axial_model():
    inputs = types.SimpleNamespace(
        image_shape=(8, 12, 3),
        train=types.SimpleNamespace(class_names=tuple("abc")),
        model_preprocessing=keras_vit.Preprocessing,
    )
    not_in_configs = ("classes", "input_shape")
    sizes = {name: value for name, value in MODEL.items() if name not in not_in_configs}
    config = ConfigDict(recipes.defaults(architecture="AxialVisionTransformer", model=sizes))
    task = tasks.get(config)
    model = task.build_model(inputs)
    batch = (IMAGES, np.eye(3, dtype="float32")[:2], np.ones(2, "float32"))
    losses, _metrics = task.losses_and_metrics(model, batch, training=True)
    np.testing.assert_allclose(losses, 2 * [np.log(3)], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patch_size": 5}, "a whole number of patches"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"stochastic_depth": 1.0}, "stochastic_depth=1.0"),
    ],
)
def test_rejects_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
