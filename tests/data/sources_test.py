"""Tests of arrays, and of what `data.load` checks for all kinds of sources."""

import numpy as np
import pytest

from keras_vit import data

from .helpers import jpeg, write_records


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": np.zeros((2, 4, 4, 3))}, "only uint8 and uint16 .*dtype=float64"),
        (
            {"images": np.zeros((2, 4, 4), np.uint8)},
            r"`images` must be numbers .*shape=\(2, 4, 4\)",
        ),
        ({"images": np.zeros((0, 4, 4, 3), np.uint8), "labels": []}, "no dimension of size 0"),
        ({"labels": [0]}, r"`labels` must be 2 integers, .*shape=\(1,\)"),
        ({"labels": [0.0, 1.0]}, "Received: dtype=float64"),
        ({"labels": [0, 2]}, "from 0 to 1. Received: labels from 0 to 2"),
        ({"labels": [-1, 0]}, "Received: labels from -1 to 0"),
        (
            {"max_value": 3, "images": np.full((2, 4, 4, 3), 9, np.uint8)},
            "`max_value`, 3. Received: pixels from 9 to 9",
        ),
    ],
)
def test_rejects_bad_arrays(arguments, message):
    good = {"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": [0, 1], "class_names": ["a", "b"]}
    with pytest.raises(ValueError, match=message):
        data.arrays(**{**good, **arguments})


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("digits", {"path": "photos"}, r"takes only the fields name, split\..*path='photos'"),
        (
            "folder",
            {"path": "photos", "image_key": "x", "classes": 3},
            r"test_share.*image_key='x', classes=3",
        ),
        ("cifar10", {"test_share": 0.5}, r"'cifar10'.*test_share=0.5"),
    ],
)
def test_rejects_fields_without_effect_on_the_dataset(name, fields, message):
    with pytest.raises(ValueError, match=message):
        data.load(name, **fields)


@pytest.mark.parametrize(("name", "fields"), [("list", {}), ("tfrecords", {"classes": 3})])
def test_error_for_missing_splits_shows_the_flags(name, fields, photos):
    with pytest.raises(ValueError, match="train_split and .*train_split='train'"):
        data.load(name, path=str(photos), **fields)


@pytest.fixture
def overlapping(tmp_path, photos):
    """Writes three TFRecord files, and two lists with a common image. Returns their folders."""
    for number in range(3):
        write_records(tmp_path / f"r-{number}", [jpeg(0), jpeg(1)], [0, 1])
    for number in range(2):
        (photos / f"{number}.csv").write_text(f"ant/0{number}.jpg,a\nbee/00.jpg,b\n")
    return {"photos": photos, "records": tmp_path}


@pytest.mark.parametrize(
    ("name", "train_split", "test_split", "fields"),
    [
        ("digits", "train", "tune_val", {}),
        ("digits", "test[:30]", "test", {}),
        ("folder", "train", "tune_val", {"path": "{photos}"}),
        ("tfrecords", "r-*", "r-2", {"path": "{records}", "classes": 2}),
        ("list", "{photos}/0.csv", "{photos}/1.csv", {}),
    ],
)
def test_splits_with_common_examples_are_refused(
    name, train_split, test_split, fields, overlapping
):
    fields = {"train_split": train_split, "test_split": test_split, **fields}
    for field, value in fields.items():
        if isinstance(value, str):
            fields[field] = value.format(**overlapping)
    with pytest.raises(ValueError, match="no common examples.*Received: train_split='.*test_split"):
        data.load(name, **fields)


def test_disjoint_splits_are_accepted(overlapping, caplog):
    data.load(
        "tfrecords",
        path=str(overlapping["records"]),
        classes=2,
        train_split="r-[01]",
        test_split="r-2",
    )
    data.load(
        "folder",
        path=str(overlapping["photos"]),
        train_split="tune_train",
        test_split="tune_val",
    )
    assert "splits are equal" not in caplog.text


def test_equal_splits_are_logged(caplog):
    data.load("digits", train_split="test", test_split="test")
    assert "splits are equal: train_split=test_split='test'" in caplog.text
