"""Tests of arrays, and of what `data.load` checks for all kinds of sources."""

import numpy as np
import pytest

from keras_vit import data

from .helpers import jpeg, write_records

BLACK = np.zeros((2, 4, 4, 3), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 4, 4), np.uint8), [0, 1], r"shape=\(2, 4, 4\)"),
        (np.zeros((0, 4, 4, 3), np.uint8), [], "no dimension of size 0"),
        (BLACK, [0], r"shape=\(1,\)"),
        (BLACK, [0.0, 1.0], "dtype=float64"),
        (BLACK, [0, 2], "labels from 0 to 2"),
        (BLACK, [-1, 0], "labels from -1 to 0"),
        (BLACK + 9, [0, 1], "pixels from 9 to 9"),
    ],
)
def test_rejects_bad_arrays(images, labels, message):
    with pytest.raises(ValueError, match=message):
        data.arrays(images, labels, ["a", "b"], max_value=3)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("digits", {"path": "photos"}, r"takes only the fields name, split\..*path='photos'"),
        ("folder", {"image_key": "x", "classes": 3}, "image_key='x', classes=3"),
        ("cifar10", {"test_share": 0.5}, "test_share=0.5"),
    ],
)
def test_rejects_fields_without_effect_on_the_dataset(name, fields, message):
    with pytest.raises(ValueError, match=message):
        data.load(name, **fields)


@pytest.fixture
def load_splits(photos):
    """Loads two splits of digits, of photos, or of three TFRecord files."""
    for number in range(3):
        write_records(photos / f"r-{number}", [jpeg(0), jpeg(1)], [0, 1])
    fields = {
        "digits": {},
        "folder": {"path": str(photos)},
        "tfrecords": {"path": str(photos), "classes": 2},
    }

    def load(name, train_split, test_split):
        data.load(name, train_split=train_split, test_split=test_split, **fields[name])

    return load


@pytest.mark.parametrize(
    "arguments",
    [
        ("digits", "train", "tune_val"),
        ("digits", "test[:30]", "test"),
        ("folder", "train", "tune_val"),
        ("tfrecords", "r-*", "r-2"),
    ],
)
def test_splits_with_common_examples_are_refused(arguments, load_splits):
    with pytest.raises(ValueError, match="no common examples"):
        load_splits(*arguments)


def test_disjoint_splits_are_accepted(load_splits, caplog):
    load_splits("tfrecords", "r-[01]", "r-2")
    load_splits("folder", "tune_train", "tune_val")
    assert "splits are equal" not in caplog.text


def test_equal_splits_are_logged(caplog):
    data.load("digits", train_split="test", test_split="test")
    assert "splits are equal" in caplog.text
