"""Tests of `data.from_config`, which builds the input pipeline from a config's `data` group."""

import numpy as np
import pytest
import tensorflow as tf
from ml_collections import ConfigDict

from keras_vit import Preprocessing, data


def test_defaults_load_digits_and_fit_a_config_dict():
    config = ConfigDict(data.defaults(shift=1))
    inputs = data.from_config(config, batch_size=64, seed=3)
    (batch,) = inputs.train_batches(start_step=7).take(1)
    (same,) = data.train_batches(
        data.load("digits")[0], batch_size=64, seed=3, start_step=7, shift=1
    ).take(1)
    for part, other in zip(batch, same):
        np.testing.assert_array_equal(part, other)
    assert sum(float(tf.reduce_sum(weights)) for *_, weights in inputs.eval_batches()) == 360
    assert inputs.bad_examples("train").count == inputs.bad_examples("test").count == 0
    assert None not in config.values()


def test_a_source_declares_its_fields(monkeypatch):
    received = []

    def gray(split, color, *, path="", level=0.5):
        received.append((split, color, path, level))
        return data.arrays(np.zeros((2, 8, 8, 3), "uint8"), [0, 1], ["a", "b"])

    assert "level" not in data.defaults()
    monkeypatch.setitem(data.SOURCES, "gray", gray)
    assert data.defaults()["level"] == 0.5
    data.from_config({"name": "gray:red", "level": 0.7, "test_split": "val"}, batch_size=2, seed=0)
    assert received == [("train", "red", "", 0.7), ("val", "red", "", 0.7)]
    with pytest.raises(ValueError, match="only the fields name, split, .*classes=3"):
        data.load_split("gray", "train", classes=3)
    for name, field in (("digits", {"level": 1}), ("folder:x", {})):
        with pytest.raises(ValueError, match=f"Received: .*{'level=1' if field else 'folder:x'}"):
            data.load_split(name, "train", **field)


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


def test_large_batches_log_no_warning(photos, caplog):
    folder = {"name": "folder", "path": str(photos), "test_share": 0.25, "image_size": 6}
    assert (
        data.from_config(folder, batch_size=64, seed=0).train.num_examples < 64
        and not caplog.records
    )


def test_inputs_have_an_image_shape(photos):
    folder = {"name": "folder", "path": str(photos), "test_share": 0.25, "image_size": 6}
    assert data.from_config(folder, batch_size=2, seed=0).image_shape == (6, 6, 3)
    assert data.from_config({}, batch_size=2, seed=0).image_shape == (8, 8, 3)


def test_every_option_has_a_default_and_documentation():
    for field in data.Options.__dataclass_fields__:
        documented = [data.Options, *map(type, data.inputs.KINDS), *data.TARGETS.values()]
        assert field in data.defaults() and any(
            f"        {field}: " in kind.__doc__ for kind in documented
        )


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


def test_folder_yields_training_and_evaluation_batches(photos):
    fields = {
        "name": "folder",
        "path": str(photos),
        "test_share": 0.25,
        "image_size": 8,
        "augreg": "medium2",
    }
    inputs = data.from_config(fields, batch_size=6, seed=0)
    images, labels, weights = next(iter(inputs.train_batches()))
    assert images.shape == (6, 8, 8, 3) and weights.numpy().tolist() == [1] * 6
    np.testing.assert_allclose(tf.reduce_sum(labels, 1), 1, rtol=1e-6)
    assert -1 <= images.numpy().min() < images.numpy().max() <= 1
    assert sum(float(tf.reduce_sum(weights)) for *_, weights in inputs.eval_batches()) == 6


@pytest.mark.parametrize(
    ("fields", "resize", "crop_fraction"),
    [
        ({"image_size": 6}, "stretch", 1.0),
        ({"image_size": 6, "eval_crop": "resize_crop", "resize_size": 8}, "stretch", 0.75),
        (
            {"image_size": 6, "eval_crop": "resize_small_crop", "resize_size": 8},
            "shorter_side",
            0.75,
        ),
    ],
)
def test_model_preprocessing_matches_evaluation(fields, resize, crop_fraction, photos):
    folder = {"name": "folder", "path": str(photos), "test_share": 0.25}
    inputs = data.from_config({**folder, **fields}, batch_size=2, seed=0)
    assert inputs.model_preprocessing() == Preprocessing(
        resize=resize, crop_fraction=crop_fraction, exif=True
    )
    digits = data.from_config({}, batch_size=2, seed=0).model_preprocessing()
    # The preprocessing is for values from 0 to 255, although the digits range from 0 to 16.
    assert digits == Preprocessing()


def test_randaugment_of_small_values_stays_in_range():
    inputs = data.from_config(
        {"name": "digits", "augreg": "medium1", "image_size": 8}, batch_size=32, seed=0
    )
    images, _, weights = next(iter(inputs.train_batches()))
    assert weights.numpy().all()
    assert images.numpy().min() >= -1 and images.numpy().max() <= 1
    assert images.numpy().std(axis=(1, 2, 3)).mean() > 0.2  # the strokes are still visible
