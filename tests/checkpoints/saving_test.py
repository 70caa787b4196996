"""Tests of saving checkpoints in the layout of `vit_jax`."""

import dataclasses
import json
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.models.any_model import logits_activation_of, set_logits_activation

from ..shared import random_images, randomize


def shapes(path):
    with np.load(path) as file:
        return {name: (file[name].shape, file[name].dtype) for name in file.files}


@pytest.mark.parametrize(
    "case, arguments",
    [
        ("vit_token", {}),
        ("vit_token_prelogits", {"representation_size": 48}),
        ("hybrid_2stage", {"patch_size": 1, "resnet_blocks": (1, 2), "input_shape": (64, 64, 3)}),
    ],
)
def test_resaving_reproduces_the_golden_arrays(case, arguments, tmp_path):
    model = small_model(weights=GOLDEN / f"{case}.ckpt.npz", **arguments)
    checkpoints.save(model, tmp_path / "saved.npz")
    assert shapes(tmp_path / "saved.npz") == shapes(GOLDEN / f"{case}.ckpt.npz")
    golden = read_arrays(GOLDEN / f"{case}.ckpt.npz")
    for name, array in read_arrays(tmp_path / "saved.npz").items():
        np.testing.assert_array_equal(array, golden[name])


@pytest.mark.parametrize(
    "arguments",
    [
        {"classifier": "gap", "input_shape": (32, 48, 3)},
        {"classifier": "map"},
        {"classifier": "token_unpooled"},
        {"class_token_position": False},
        {"class_token_position": False, "input_shape": (16, 48, 3)},
        {"class_token_position": False, "position_embedding": "sincos2d"},
        {"class_token_position": False, "distilled": True},
        {"include_top": False, "representation_size": 16},
        {"patch_size": 8, "resnet_blocks": (), "input_shape": (64, 32, 3)},
    ],
    ids=str,
)
def test_save_and_load_is_bit_exact(arguments, tmp_path):
    model = randomize(small_model(**arguments))
    checkpoints.save(model, tmp_path / "saved.npz")
    again = small_model(weights=tmp_path / "saved.npz", **arguments)
    before = weights_of(model)
    after = weights_of(again)
    assert before.keys() == after.keys()
    for name in before:
        assert before[name].tobytes() == after[name].tobytes(), name


def test_bfloat16_variables_are_saved_as_float32(tmp_path):
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = randomize(small_model())
        checkpoints.save(model, tmp_path / "saved.npz")
        again = small_model(weights=tmp_path / "saved.npz")
    finally:
        keras.config.set_dtype_policy("float32")
    assert {dtype for _, dtype in shapes(tmp_path / "saved.npz").values()} == {np.dtype("float32")}
    for name, value in weights_of(model).items():
        np.testing.assert_array_equal(
            np.asarray(value, "float32"), np.asarray(weights_of(again)[name], "float32")
        )


def test_saved_file_stores_the_position_grid(tmp_path):
    checkpoints.save(small_model(), tmp_path / "square.npz")
    checkpoints.save(randomize(small_model(input_shape=(32, 48, 3))), tmp_path / "wide.npz")
    comments = [zipfile.ZipFile(tmp_path / f"{name}.npz").comment for name in ("square", "wide")]
    facts = [json.loads(comment.removeprefix(b"keras_vit ")) for comment in comments]
    assert [fact["grid"] for fact in facts] == [[4, 4], [4, 6]]
    assert (
        facts[0]["constructor"] == "VisionTransformer" and facts[0]["arguments"]["epsilon"] == 1e-6
    )
    # The grid is not stored as an array, because the loader of `vit_jax` rejects unknown arrays.
    assert set(read_arrays(tmp_path / "wide.npz")) == set(read_arrays(tmp_path / "square.npz"))
    # Both grids have 24 patches, so the arrays have equal shapes.
    narrow = small_model(input_shape=(24, 64, 3))
    checkpoints.load(narrow, tmp_path / "wide.npz")
    positions = np.asarray(narrow.get_layer("position_embedding").pos_embedding)
    stored = read_arrays(tmp_path / "wide.npz")["Transformer/posembed_input/pos_embedding"]
    # Resampled from 4x6 to 3x8.
    assert positions.shape == stored.shape and not np.allclose(positions, stored)


def test_failed_write_leaves_no_file(tmp_path):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ValueError, match="cannot be written"):
        checkpoints.save(small_model(), tmp_path / "folder.npz")
    with pytest.raises(ValueError, match="cannot be written"):
        checkpoints.save(small_model(), tmp_path / "missing" / "x.npz")
    with pytest.raises(ValueError, match="must be local"):
        checkpoints.save(small_model(), "gs://bucket/x.npz")
    with pytest.raises(ValueError, match=r'must end in ".npz"'):
        checkpoints.save(small_model(), tmp_path / "x.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npz"]


def test_save_rejects_other_keras_models(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense")])
    with pytest.raises(ValueError, match="Only keras_vit models"):
        checkpoints.save(model, tmp_path / "x.npz")


def test_saved_file_stores_the_preprocessing(tmp_path):
    unusual = keras_vit.Preprocessing(mean=(20, 30, 40), std=(50, 60, 70))
    checkpoints.save(
        randomize(small_model(preprocessing=unusual, input_shape=(32, 48, 3))),
        tmp_path / "model.npz",
    )
    model = small_model(input_shape=(32, 48, 3))
    checkpoints.load(model, tmp_path / "model.npz")
    assert keras_vit.preprocessing_of(model) == unusual
    resized = keras_vit.Preprocessing(
        resize="shorter_side",
        crop_fraction=0.875,
        interpolation="bicubic",
        exif=True,
        rounding="uint8",
        library="torchvision",
    )
    checkpoints.save(randomize(small_model(preprocessing=resized)), tmp_path / "resized.npz")
    assert keras_vit.from_pretrained(tmp_path / "resized.npz").preprocessing == resized
    gray = small_model(input_shape=(32, 48, 1))
    checkpoints.load(gray, tmp_path / "model.npz", channels="sum")
    # Averages over channels.
    assert keras_vit.preprocessing_of(gray) == keras_vit.Preprocessing(mean=(30,), std=(60,))


def test_load_adapts_preprocessing_to_the_channels(tmp_path):
    photos = keras_vit.Preprocessing(
        (20, 30, 40), (50, 60, 70), "shorter_side", 0.875, interpolation="bicubic"
    )
    checkpoints.save(randomize(small_model(preprocessing=photos)), tmp_path / "model.npz")
    own = keras_vit.Preprocessing((1, 2), (3, 4))
    for before, mean, std in ((None, (30, 30), (60, 60)), (own, own.mean, own.std)):
        model = small_model(input_shape=(32, 32, 2), preprocessing=before)
        checkpoints.load(model, tmp_path / "model.npz", channels="tile")
        assert model.preprocessing == dataclasses.replace(photos, mean=mean, std=std)


def test_load_converts_preprocessing_to_the_bit_depth(tmp_path):
    deep = keras_vit.Preprocessing(mean=(30000,) * 3, std=(20000,) * 3, bit_depth=16)
    checkpoints.save(randomize(small_model(preprocessing=deep)), tmp_path / "deep.npz")
    assert keras_vit.from_pretrained(tmp_path / "deep.npz").preprocessing == deep
    model = small_model()
    checkpoints.load(model, tmp_path / "deep.npz")
    np.testing.assert_allclose(model.preprocessing.mean, [30000 / 257] * 3)
    np.testing.assert_allclose(model.preprocessing.std, [20000 / 257] * 3)
    assert model.preprocessing.bit_depth == 8
    checkpoints.save(
        small_model(preprocessing=keras_vit.Preprocessing(mean=(100,) * 3)), tmp_path / "model.npz"
    )
    model = small_model(preprocessing=deep)
    checkpoints.load(model, tmp_path / "model.npz", head="new")
    np.testing.assert_allclose(model.preprocessing.mean, [25700] * 3)
    assert model.preprocessing.bit_depth == 16


def test_load_adds_positions_to_both_class_tokens(tmp_path):
    model = randomize(small_model(distilled=True))
    checkpoints.save(model, tmp_path / "model.npz")
    other = small_model(distilled=True, class_token_position=False, weights=tmp_path / "model.npz")
    images = random_images((2, 32, 32, 3), seed=1)
    expected, logits = (keras.ops.convert_to_numpy(m(images)) for m in (model, other))
    np.testing.assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max())


def test_saved_file_stores_the_logits_activation(tmp_path):
    model = small_model()
    set_logits_activation(model, "sigmoid")
    checkpoints.save(randomize(model), tmp_path / "model.npz")
    assert logits_activation_of(keras_vit.from_pretrained(tmp_path / "model.npz")) == "sigmoid"
    new_head = keras_vit.from_pretrained(tmp_path / "model.npz", head="new", classes=3)
    assert logits_activation_of(new_head) == "softmax"


def test_saved_file_records_the_activation_that_it_omits(small, tmp_path, caplog):
    model = randomize(small(classifier_activation="sigmoid"))
    checkpoints.save(model, tmp_path / "model.npz")
    assert "classifier_activation='sigmoid'" in caplog.text
    rebuilt = keras_vit.from_pretrained(tmp_path / "model.npz")
    assert logits_activation_of(rebuilt) == "sigmoid"
    images = random_images((2, 32, 32, 3), seed=1)
    probabilities = keras.ops.sigmoid(rebuilt(images))
    np.testing.assert_allclose(probabilities, model(images), rtol=1e-5, atol=1e-6)
