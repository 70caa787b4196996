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

from ..shared import GOLDEN, assert_close, assert_same_arrays, random_images, randomize, read_arrays
from .helpers import small_model, weights_of


@pytest.mark.parametrize(
    "case, arguments",
    [
        ("vit_token", {}),
        ("vit_token_prelogits", {"representation_size": 48}),
        ("hybrid_2stage", {"patch_size": 1, "resnet_blocks": (1, 2), "input_shape": (64, 64, 3)}),
    ],
)
def test_saved_file_has_the_arrays_of_the_loaded_one(case, arguments, tmp_path):
    source = GOLDEN / f"{case}.ckpt.npz"
    checkpoints.save(small_model(weights=source, **arguments), tmp_path / "saved.npz")
    saved = read_arrays(tmp_path / "saved.npz")
    expected = read_arrays(source)
    assert saved.keys() == expected.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name, strict=True)


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
    restored = small_model(weights=tmp_path / "saved.npz", **arguments)
    assert_same_arrays(weights_of(restored), weights_of(model))


def test_bfloat16_variables_are_saved_as_float32(tmp_path):
    keras.config.set_dtype_policy("bfloat16")
    model = randomize(small_model())
    checkpoints.save(model, tmp_path / "saved.npz")
    restored = small_model(weights=tmp_path / "saved.npz")
    arrays = read_arrays(tmp_path / "saved.npz")
    assert {array.dtype for array in arrays.values()} == {np.dtype("float32")}
    assert_same_arrays(weights_of(restored), weights_of(model))


def facts_in(path):
    """Returns the facts about the model in the comment of a file."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.comment.removeprefix(b"keras_vit "))


def test_saved_file_stores_constructor_arguments_and_grid(tmp_path):
    square = tmp_path / "square.npz"
    wide = tmp_path / "wide.npz"
    checkpoints.save(small_model(), square)
    checkpoints.save(small_model(input_shape=(32, 48, 3)), wide)
    facts = facts_in(square)
    assert facts["constructor"] == "VisionTransformer"
    assert facts["arguments"]["epsilon"] == 1e-6
    assert facts["grid"] == [4, 4]
    assert facts_in(wide)["grid"] == [4, 6]
    # The grid is not stored as an array, because the loader of `vit_jax` rejects unknown arrays.
    assert read_arrays(wide).keys() == read_arrays(square).keys()


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


def save_with_preprocessing(preprocessing, path):
    checkpoints.save(randomize(small_model(preprocessing=preprocessing)), path)
    return path


def test_saved_file_stores_the_preprocessing(tmp_path):
    path = save_with_preprocessing(PHOTOS, tmp_path / "model.npz")
    assert keras_vit.from_pretrained(path).preprocessing == PHOTOS
    model = small_model()
    checkpoints.load(model, path)
    assert keras_vit.preprocessing_of(model) == PHOTOS


def test_load_averages_the_preprocessing_for_one_channel(tmp_path):
    path = save_with_preprocessing(PHOTOS, tmp_path / "model.npz")
    gray = small_model(input_shape=(32, 32, 1))
    checkpoints.load(gray, path, channels="sum")
    expected = dataclasses.replace(PHOTOS, mean=(30,), std=(60,))
    assert keras_vit.preprocessing_of(gray) == expected


@pytest.mark.parametrize(
    "given, mean, std",
    [
        (None, (30, 30), (60, 60)),
        (keras_vit.Preprocessing((1, 2), (3, 4)), (1, 2), (3, 4)),
    ],
    ids=["averaged", "given"],
)
def test_load_adapts_preprocessing_to_the_channels(given, mean, std, tmp_path):
    path = save_with_preprocessing(PHOTOS, tmp_path / "model.npz")
    model = small_model(input_shape=(32, 32, 2), preprocessing=given)
    checkpoints.load(model, path, channels="tile")
    assert model.preprocessing == dataclasses.replace(PHOTOS, mean=mean, std=std)


SIXTEEN_BITS = keras_vit.Preprocessing(mean=(30000,) * 3, std=(20000,) * 3, bit_depth=16)


def test_load_converts_16_bit_preprocessing_to_8_bits(tmp_path):
    path = save_with_preprocessing(SIXTEEN_BITS, tmp_path / "deep.npz")
    assert keras_vit.from_pretrained(path).preprocessing == SIXTEEN_BITS
    model = small_model()
    checkpoints.load(model, path)
    assert model.preprocessing.bit_depth == 8
    np.testing.assert_allclose(model.preprocessing.mean, [30000 / 257] * 3)
    np.testing.assert_allclose(model.preprocessing.std, [20000 / 257] * 3)


def test_load_converts_8_bit_preprocessing_to_16_bits(tmp_path):
    gray = keras_vit.Preprocessing(mean=(100,) * 3)
    path = save_with_preprocessing(gray, tmp_path / "model.npz")
    model = small_model(preprocessing=SIXTEEN_BITS)
    checkpoints.load(model, path, head="new")
    assert model.preprocessing.bit_depth == 16
    np.testing.assert_allclose(model.preprocessing.mean, [25700] * 3)


def test_load_adds_positions_to_both_class_tokens(tmp_path):
    model = randomize(small_model(distilled=True))
    checkpoints.save(model, tmp_path / "model.npz")
    other = small_model(distilled=True, class_token_position=False, weights=tmp_path / "model.npz")
    images = random_images((2, 32, 32, 3), seed=1)
    assert_close(other(images), model(images), tolerance=1e-4)


def test_saved_file_stores_the_logits_activation(tmp_path):
    model = small_model()
    set_logits_activation(model, "sigmoid")
    checkpoints.save(randomize(model), tmp_path / "model.npz")
    restored = keras_vit.from_pretrained(tmp_path / "model.npz")
    assert logits_activation_of(restored) == "sigmoid"
    new_head = keras_vit.from_pretrained(tmp_path / "model.npz", head="new", classes=3)
    assert logits_activation_of(new_head) == "softmax"


def test_saved_file_records_the_activation_that_it_omits(tmp_path, caplog):
    model = randomize(small_model(classifier_activation="sigmoid"))
    checkpoints.save(model, tmp_path / "model.npz")
    assert "classifier_activation='sigmoid'" in caplog.text
    rebuilt = keras_vit.from_pretrained(tmp_path / "model.npz")
    assert logits_activation_of(rebuilt) == "sigmoid"
    images = random_images((2, 32, 32, 3), seed=1)
    probabilities = keras.ops.sigmoid(rebuilt(images))
    np.testing.assert_allclose(probabilities, model(images), rtol=1e-5, atol=1e-6)


@pytest.mark.one_backend
@pytest.mark.parametrize("library", ["timm", "huggingface"])
def test_saved_folder_records_the_activation_that_it_omits(library, tmp_path):
    model = randomize(small_model(classifier_activation="sigmoid"))
    checkpoints.save(model, tmp_path / "model", format=library)
    rebuilt = keras_vit.from_pretrained(tmp_path / "model")
    assert logits_activation_of(rebuilt) == "sigmoid"


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("include_top", "message"), [(True, "must have 10 names"), (False, "None for a model without")]
)
def test_class_names_that_do_not_fit_the_head_are_refused(include_top, message, tmp_path):
    model = small_model(include_top=include_top)
    with pytest.raises(ValueError, match=f"{message}.*2 class_names"):
        checkpoints.save(model, tmp_path, format="timm", class_names=["cat", "dog"])
