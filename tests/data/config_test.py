"""Tests of `data.from_config`, which builds the input pipeline from a config's `data` group."""

import numpy as np
import pytest
from ml_collections import ConfigDict

from keras_vit import Preprocessing, data

from .helpers import assert_same_batches, take


def test_defaults_load_digits_and_fit_a_config_dict():
    config = ConfigDict(data.defaults(shift=1))
    inputs = data.from_config(config, batch_size=64, seed=3)
    train, test = data.load("digits")
    expected = data.train_batches(train, batch_size=64, seed=3, start_step=7, shift=1)
    assert_same_batches(take(inputs.train_batches(start_step=7), 1), take(expected, 1))
    expected = data.eval_batches(test, batch_size=64)
    assert_same_batches(list(inputs.eval_batches()), list(expected))
    # The stored values of the digits range from 0 to 16, and those of the model to 255.
    assert inputs.model_preprocessing() == Preprocessing()
    # A `ConfigDict` could not override a field whose value is None.
    assert None not in config.values()


def test_source_of_a_user_declares_fields_and_receives_only_them(monkeypatch):
    """No field can have a default that a config cannot store, such as `len`."""
    received = []

    def gray(split, color, *, path="", level=0.5, image_size=64, decode=len, **fields):
        received.append((split, color, path, level, image_size, decode, fields))
        return data.arrays(np.zeros((2, 8, 8, 3), "uint8"), [0, 1], ["a", "b"])

    before = data.defaults()
    monkeypatch.setitem(data.SOURCES, "gray", gray)
    assert data.defaults() == {**before, "level": 0.5}
    data.from_config({"name": "gray:red", "level": 0.7, "test_split": "val"}, batch_size=2, seed=0)
    assert received == [(split, "red", "", 0.7, 64, len, {}) for split in ("train", "val")]


def test_only_some_names_have_a_second_part():
    with pytest.raises(ValueError, match="Received: name='folder:x'"):
        data.load_split("folder:x", "train")


def test_source_of_a_user_may_wrap_a_folder(photos, monkeypatch):
    monkeypatch.setitem(data.SOURCES, "mine", lambda split, rest: data.folder(photos, split))
    train, test = data.load("mine:x")
    assert train.class_names == test.class_names == data.folder(photos, "train").class_names


def test_every_option_is_documented():
    input_kinds = [type(kind) for kind in data.inputs.KINDS]
    documented = [data.Options, *input_kinds, *data.TARGETS.values()]
    for field in data.Options.__dataclass_fields__:
        assert any(f"        {field}: " in kind.__doc__ for kind in documented), field


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_classes": 3}, "Received: num_classes"),
        ({"flip": "maybe"}, "Received: flip='maybe'$"),
        ({"prefetch": 0}, "1 or more. Received: prefetch=0"),
        ({"mean": (1.0,)}, "3 numbers, one for each channel"),
        ({"train_crop": "inception"}, "image_size=0"),
    ],
)
def test_from_config_rejects_bad_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        data.from_config(fields, batch_size=8, seed=0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"exif": "off"}, {"exif": False}),
        ({"eval_crop": "resize_crop", "resize_size": 8}, {"crop_fraction": 0.75}),
        (
            {"eval_crop": "resize_small_crop", "resize_size": 8},
            {"resize": "shorter_side", "crop_fraction": 0.75},
        ),
        (
            {"channels": 1, "bit_depth": 16, "mean": (9.0,), "std": (2.0,)},
            {"bit_depth": 16, "mean": (9.0,), "std": (2.0,)},
        ),
        ({"augreg": "light1"}, {"rounding": "uint8"}),
    ],
    ids=lambda fields: " ".join(fields),
)
def test_model_preprocessing_matches_evaluation(fields, expected, photos):
    fields = {"name": "folder", "path": str(photos), "image_size": 6, **fields}
    inputs = data.from_config(fields, batch_size=2, seed=0)
    assert inputs.model_preprocessing() == Preprocessing(**{"exif": True, **expected})
    assert inputs.image_shape == (6, 6, fields.get("channels", 3))


@pytest.mark.parametrize(("value", "is_on"), [(1, True), (0, False), ("TRUE", True)])
def test_switches_take_values_that_equal_true_or_false(value, is_on):
    options = data.Options(exif=value, flip=value)
    assert options.exif is options.flip is is_on


def test_summary_names_crop_shift_and_flip():
    inputs = data.from_config({"shift": 2}, batch_size=2, seed=0)
    assert "train_crop none, shift 2, flip off" in inputs.summary()


def test_randaugment_of_small_values_stays_in_range():
    fields = {"name": "digits", "augreg": "medium1", "image_size": 8}
    inputs = data.from_config(fields, batch_size=32, seed=0)
    images, _, weights = next(iter(inputs.train_batches()))
    assert weights.numpy().all()
    assert images.numpy().min() >= -1 and images.numpy().max() <= 1
    assert images.numpy().std(axis=(1, 2, 3)).mean() > 0.2  # the strokes are still visible
