"""Tests of `data.from_config`, which builds the input pipeline from a config's `data` group."""

import numpy as np
import pytest
import tensorflow as tf
from ml_collections import ConfigDict

from keras_vit import Preprocessing, data

from .helpers import assert_same_batches, take


def test_defaults_load_digits_and_fit_a_config_dict():
    config = ConfigDict(data.defaults(shift=1))
    inputs = data.from_config(config, batch_size=64, seed=3)
    digits = data.load_split("digits", "train")
    expected = data.train_batches(digits, batch_size=64, seed=3, start_step=7, shift=1)
    assert_same_batches(take(inputs.train_batches(start_step=7), 1), take(expected, 1))
    assert number_of_test_examples(inputs) == 360
    assert inputs.bad_examples("train").count == inputs.bad_examples("test").count == 0
    # A `ConfigDict` could not override a field whose value is None.
    assert None not in config.values()


def number_of_test_examples(inputs):
    """Returns the sum of the weights of the evaluation batches."""
    return sum(float(tf.reduce_sum(weights)) for *_, weights in inputs.eval_batches())


@pytest.fixture
def received(monkeypatch):
    """Adds a source "gray" with the field `level`, and returns a list of the arguments that it
    receives."""
    arguments = []

    def gray(split, color, *, path="", level=0.5):
        arguments.append((split, color, path, level))
        return data.arrays(np.zeros((2, 8, 8, 3), "uint8"), [0, 1], ["a", "b"])

    assert "level" not in data.defaults()
    monkeypatch.setitem(data.SOURCES, "gray", gray)
    return arguments


def test_a_source_declares_its_fields(received):
    assert data.defaults()["level"] == 0.5
    data.from_config({"name": "gray:red", "level": 0.7, "test_split": "val"}, batch_size=2, seed=0)
    assert received == [("train", "red", "", 0.7), ("val", "red", "", 0.7)]


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("gray", {"classes": 3}, "only the fields name, split, .*classes=3"),
        ("digits", {"level": 1}, "Received: level=1"),
        ("folder:x", {}, "Received: name='folder:x'"),
    ],
)
def test_sources_refuse_other_fields_and_names(name, fields, message, received):
    with pytest.raises(ValueError, match=message):
        data.load_split(name, "train", **fields)


def test_source_of_a_user_may_wrap_a_folder(photos, monkeypatch):
    monkeypatch.setitem(data.SOURCES, "mine", lambda split, rest: data.folder(photos, split))
    train, test = data.load("mine:x")
    assert train.class_names == test.class_names == data.folder(photos, "train").class_names


def test_parameters_of_a_source_need_not_be_config_fields(monkeypatch):
    received = []

    def drawn(split, rest, *, image_size=64, decode=len, **fields):
        received.append((split, rest, image_size, decode, fields))
        return data.arrays(np.zeros((2, 8, 8, 3), "uint8"), [0, 1], ["a", "b"])

    before = data.defaults()
    monkeypatch.setitem(data.SOURCES, "drawn", drawn)
    assert data.defaults() == before
    data.from_config({"name": "drawn:x", "test_split": "val"}, batch_size=2, seed=0)
    assert received == [("train", "x", 64, len, {}), ("val", "x", 64, len, {})]


@pytest.fixture
def folder(photos):
    """Returns the fields that load a folder with 17 training and 6 test images."""
    return {"name": "folder", "path": str(photos), "test_share": 0.25, "image_size": 6}


def test_large_batches_log_no_warning(folder, caplog):
    assert data.from_config(folder, batch_size=64, seed=0).train.num_examples == 17
    assert not caplog.records


def test_inputs_have_an_image_shape(folder):
    assert data.from_config(folder, batch_size=2, seed=0).image_shape == (6, 6, 3)
    assert data.from_config({}, batch_size=2, seed=0).image_shape == (8, 8, 3)


@pytest.mark.parametrize("field", data.Options.__dataclass_fields__)
def test_every_option_has_a_default_and_documentation(field):
    assert field in data.defaults()
    input_kinds = [type(kind) for kind in data.inputs.KINDS]
    documented = [data.Options, *input_kinds, *data.TARGETS.values()]
    assert any(f"        {field}: " in kind.__doc__ for kind in documented)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_classes": 3}, "The fields of `data` are .*classes.*Received: num_classes"),
        ({"name": "digit"}, "'digit'"),
        ({"flip": "maybe"}, "'maybe'"),
        ({"exif": "yes"}, "one of auto, on, off, True, False. Received: exif='yes'"),
        ({"name": "folder", "path": "/nowhere"}, "/nowhere"),
        ({"train_crop": "inception"}, "image_size=0"),
    ],
)
def test_from_config_rejects_bad_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        data.from_config(fields, batch_size=8, seed=0)


def test_folder_yields_training_and_evaluation_batches(folder):
    folder |= {"image_size": 8, "augreg": "medium2"}
    inputs = data.from_config(folder, batch_size=6, seed=0)
    images, labels, weights = next(iter(inputs.train_batches()))
    assert images.shape == (6, 8, 8, 3) and weights.numpy().tolist() == [1] * 6
    np.testing.assert_allclose(tf.reduce_sum(labels, 1), 1, rtol=1e-6)
    assert -1 <= images.numpy().min() < images.numpy().max() <= 1
    assert number_of_test_examples(inputs) == 6


@pytest.mark.parametrize(
    ("fields", "resize", "crop_fraction"),
    [
        ({}, "stretch", 1.0),
        ({"eval_crop": "resize_crop", "resize_size": 8}, "stretch", 0.75),
        ({"eval_crop": "resize_small_crop", "resize_size": 8}, "shorter_side", 0.75),
    ],
)
def test_model_preprocessing_matches_evaluation(fields, resize, crop_fraction, folder):
    inputs = data.from_config({**folder, **fields}, batch_size=2, seed=0)
    expected = Preprocessing(resize=resize, crop_fraction=crop_fraction, exif=True)
    assert inputs.model_preprocessing() == expected


def test_model_preprocessing_is_for_values_up_to_255():
    # The stored values of the digits range from 0 to 16.
    digits = data.from_config({}, batch_size=2, seed=0)
    assert digits.model_preprocessing() == Preprocessing()


def test_randaugment_of_small_values_stays_in_range():
    inputs = data.from_config(
        {"name": "digits", "augreg": "medium1", "image_size": 8}, batch_size=32, seed=0
    )
    images, _, weights = next(iter(inputs.train_batches()))
    assert weights.numpy().all()
    assert images.numpy().min() >= -1 and images.numpy().max() <= 1
    assert images.numpy().std(axis=(1, 2, 3)).mean() > 0.2  # the strokes are still visible
