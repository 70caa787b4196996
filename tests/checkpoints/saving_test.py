"""Tests of saving checkpoints in the layout of `vit_jax`."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.models.any_model import logits_activation_of, set_logits_activation

from ..shared import GOLDEN, assert_same_arrays, randomize, read_arrays
from .helpers import small_model, weights_of

PHOTOS = keras_vit.Preprocessing(
    mean=(20, 30, 40),
    std=(50, 60, 70),
    resize="shorter_side",
    crop_fraction=0.875,
    interpolation="bicubic",
    exif=True,
    rounding="uint8",
    library="torchvision",
)
DEFAULT = keras_vit.Preprocessing()


def save_with_preprocessing(preprocessing, path):
    checkpoints.save(randomize(small_model(preprocessing=preprocessing)), path)
    return path


@pytest.mark.parametrize(
    "case, arguments",
    [
        ("vit_token", {}),
        ("vit_gap", {"source_grid": (4, 6)}),
        ("vit_token_prelogits", {}),
        ("hybrid_2stage", {}),
    ],
)
def test_saved_file_has_the_arrays_of_the_loaded_one(case, arguments, tmp_path):
    source = GOLDEN / f"{case}.ckpt.npz"
    model = keras_vit.from_pretrained(source, **arguments)
    checkpoints.save(model, tmp_path / "saved.npz")
    assert_same_arrays(read_arrays(tmp_path / "saved.npz"), read_arrays(source))


@pytest.mark.parametrize(
    "arguments",
    [
        {"classifier": "gap", "input_shape": (32, 48, 3)},
        {"classifier": "map"},
        {"class_token_position": False, "input_shape": (16, 48, 3)},
        {"class_token_position": False, "distilled": True},
        {"include_top": False, "representation_size": 16},
        {"patch_size": 8, "resnet_blocks": (), "input_shape": (64, 32, 3)},
    ],
    ids=str,
)
def test_save_and_load_is_bit_exact(arguments, tmp_path):
    model = randomize(small_model(**arguments))
    checkpoints.save(model, tmp_path / "saved.npz")
    restored = small_model(weights=tmp_path / "saved.npz", **arguments)
    assert_same_arrays(weights_of(restored), weights_of(model))


def test_bfloat16_variables_are_saved_as_float32(tmp_path):
    keras.config.set_dtype_policy("bfloat16")
    model = randomize(small_model())
    checkpoints.save(model, tmp_path / "saved.npz")
    restored = small_model(weights=tmp_path / "saved.npz")
    assert_same_arrays(weights_of(restored), weights_of(model))
    arrays = read_arrays(tmp_path / "saved.npz")
    assert {array.dtype.name for array in arrays.values()} == {"float32"}


@pytest.mark.one_backend
def test_failed_write_leaves_no_file(tmp_path):
    (tmp_path / "folder.npz").mkdir()
    model = small_model()
    for path, message in (
        (tmp_path / "folder.npz", "cannot be written"),
        (tmp_path / "missing" / "x.npz", "cannot be written"),
        ("gs://bucket/x.npz", "must be local"),
        (tmp_path / "x.h5", 'must end in ".npz"'),
    ):
        with pytest.raises(ValueError, match=message):
            checkpoints.save(model, path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npz"]


@pytest.mark.one_backend
def test_save_rejects_other_keras_models(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense")])
    with pytest.raises(ValueError, match="Only keras_vit models"):
        checkpoints.save(model, tmp_path / "x.npz")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "stored, other",
    [(PHOTOS, DEFAULT), (DEFAULT, PHOTOS)],
    ids=["photos", "default"],
)
def test_saved_file_stores_the_preprocessing(stored, other, tmp_path):
    path = save_with_preprocessing(stored, tmp_path / "model.npz")
    assert keras_vit.from_pretrained(path).preprocessing == stored
    model = small_model(preprocessing=other)
    checkpoints.load(model, path)
    assert keras_vit.preprocessing_of(model) == stored


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "channels, given, mean, std",
    [
        (1, None, (30,), (60,)),
        (2, None, (30, 30), (60, 60)),
        (2, keras_vit.Preprocessing((1, 2), (3, 4)), (1, 2), (3, 4)),
    ],
    ids=["one", "two", "given"],
)
def test_load_adapts_preprocessing_to_the_channels(channels, given, mean, std, tmp_path):
    path = save_with_preprocessing(PHOTOS, tmp_path / "model.npz")
    model = small_model(input_shape=(32, 32, channels), preprocessing=given)
    checkpoints.load(model, path, channels="sum")
    assert model.preprocessing == dataclasses.replace(PHOTOS, mean=mean, std=std)


@pytest.mark.one_backend
def test_load_converts_preprocessing_to_another_bit_depth(tmp_path):
    sixteen_bits = keras_vit.Preprocessing(mean=(30000,) * 3, std=(20000,) * 3, bit_depth=16)
    path = save_with_preprocessing(sixteen_bits, tmp_path / "deep.npz")
    assert keras_vit.from_pretrained(path).preprocessing == sixteen_bits
    model = small_model()
    checkpoints.load(model, path)
    assert model.preprocessing.bit_depth == 8
    np.testing.assert_allclose(model.preprocessing.mean, [30000 / 257] * 3)
    np.testing.assert_allclose(model.preprocessing.std, [20000 / 257] * 3)


@pytest.mark.one_backend
def test_saved_file_stores_the_logits_activation(tmp_path):
    model = small_model()
    checkpoints.save(randomize(model), tmp_path / "softmax.npz")
    set_logits_activation(model, "sigmoid")
    checkpoints.save(model, tmp_path / "model.npz")
    restored = keras_vit.from_pretrained(tmp_path / "model.npz")
    assert logits_activation_of(restored) == "sigmoid"
    checkpoints.load(restored, tmp_path / "softmax.npz")
    assert logits_activation_of(restored) == "softmax"
    new_head = keras_vit.from_pretrained(tmp_path / "model.npz", head="new", classes=3)
    assert logits_activation_of(new_head) == "softmax"


@pytest.mark.one_backend
def test_files_record_the_activation_that_they_omit(tmp_path, caplog):
    model = randomize(small_model(classifier_activation="sigmoid"))
    checkpoints.save(model, tmp_path / "model.npz")
    assert "classifier_activation='sigmoid'" in caplog.text
    rebuilt = keras_vit.from_pretrained(tmp_path / "model.npz")
    assert logits_activation_of(rebuilt) == "sigmoid"
    assert rebuilt.arguments["classifier_activation"] is None
    for library in ("timm", "huggingface"):
        checkpoints.save(model, tmp_path / library, format=library)
        assert logits_activation_of(keras_vit.from_pretrained(tmp_path / library)) == "sigmoid"


@pytest.mark.one_backend
def test_class_names_must_fit_the_head(tmp_path):
    with pytest.raises(ValueError, match="must have 10 names"):
        checkpoints.save(small_model(), tmp_path, format="timm", class_names=["cat", "dog"])
