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

from ..shared import TWO_LAYERS, random_images, randomize

MODEL = {**TWO_LAYERS, "patch_size": 4}
ROWS = 2
COLUMNS = 3


def build(seed=0, **arguments):
    model = keras_vit.AxialVisionTransformer(**{**MODEL, "input_shape": (8, 12, 3), **arguments})
    return randomize(model, 0.5, seed=seed)


def images():
    return random_images((2, 8, 12, 3), seed=1)


@pytest.fixture
def masked_attention(monkeypatch):
    """Returns a function that limits attention to the token pairs for which `allowed(query, key)`
    is true."""

    def use(allowed):
        tokens = np.arange(ROWS * COLUMNS)
        mask = np.where(allowed(tokens[:, None], tokens), 0.0, -1e9).astype("float32")

        def scores(self, query, key, dtype=None, real=None):
            query = keras.ops.transpose(query, (0, 2, 1, 3))
            key = keras.ops.transpose(key, (0, 2, 3, 1))
            # 2 is the square root of the head size, 4.
            return keras.ops.softmax(keras.ops.matmul(query, key) / 2.0 + mask, axis=-1)

        monkeypatch.setattr(MultiHeadAttention, "scores", scores)

    return use


def test_axial_block_matches_two_masked_attention_blocks(masked_attention):
    axial = layers.AxialTransformerBlock((ROWS, COLUMNS), num_heads=2, mlp_dim=12)
    tokens = np.random.default_rng(0).normal(size=(3, 6, 8)).astype("float32")
    axial(tokens)
    randomize(axial, 0.5)
    actual = np.array(axial(tokens))
    masked_attention(lambda query, key: query // COLUMNS == key // COLUMNS)
    x = axial.row(tokens)
    masked_attention(lambda query, key: query % COLUMNS == key % COLUMNS)
    np.testing.assert_allclose(actual, axial.column(x), atol=1e-5)


@pytest.mark.one_backend
def test_axial_block_mixes_all_patches():
    axial = layers.AxialTransformerBlock((ROWS, COLUMNS), num_heads=2, mlp_dim=12)
    tokens = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
    other = tokens.copy()
    other[:, 5, 0] += 1  # the lower right patch
    changed = np.abs(np.array(axial(tokens)) - np.array(axial(other))).max(-1)[0] > 1e-6
    assert changed.all()


@pytest.mark.one_backend
def test_parameters_and_macs_match_hand_calculation():
    # Each layer has two ViT-B blocks of 7,087,872 parameters. On a 14x14 grid, each token attends
    # to 14 tokens.
    build = keras_vit.models.AxialVisionTransformer
    sizes = {"patch_size": 16, "hidden_size": 768, "mlp_dim": 3072, "num_heads": 12, "classes": 10}
    one, two = (cost.build_abstract(build, num_layers=n, **sizes) for n in (1, 2))
    assert two.count_params() - one.count_params() == 2 * 7_087_872
    products = 2 * 196 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 14 * 768)
    assert cost.multiply_accumulates(two) - cost.multiply_accumulates(one) == products


@pytest.mark.one_backend
def test_axial_model_saves_loads_and_resamples(tmp_path):
    model = build()
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(images()), model(images()))
    checkpoints.save(model, tmp_path / "model.npz")
    other = build(seed=1, weights=str(tmp_path / "model.npz"))
    checkpoints.load(other, str(tmp_path / "model.npz"))
    np.testing.assert_array_equal(other(images()), model(images()))
    larger = build(input_shape=(16, 16, 3))
    report = checkpoints.load(larger, str(tmp_path / "model.npz"))
    assert [name.rpartition("/")[2] for name, *_ in report.resampled] == [
        "x_embedding",
        "y_embedding",
    ]


def test_classification_task_accepts_axial_model():
    inputs = types.SimpleNamespace(
        image_shape=(8, 12, 3),
        train=types.SimpleNamespace(class_names=tuple("abc")),
        model_preprocessing=keras_vit.Preprocessing,
    )
    sizes = {name: value for name, value in MODEL.items() if name != "classes"}
    task = tasks.get(
        ConfigDict(recipes.defaults(architecture="AxialVisionTransformer", model=sizes))
    )
    model = task.build_model(inputs)
    batch = (images(), np.eye(3, dtype="float32")[:2], np.ones(2, "float32"))
    losses, _metrics = task.losses_and_metrics(model, batch, training=True)
    np.testing.assert_allclose(losses, 2 * [np.log(3)], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patch_size": 5}, "image's height must be a whole number of patches"),
        ({"num_layers": 0}, "`num_layers` must be an integer of 1 or more"),
        ({"stochastic_depth": 1.0}, r"`stochastic_depth` must be a number in \[0, 1\)"),
    ],
)
def test_rejects_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
