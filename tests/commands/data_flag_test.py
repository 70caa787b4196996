"""Tests of the flags `--data` and `--class_names`."""

import shutil

import keras
import numpy as np
import pytest

from keras_vit import data
from keras_vit.commands import evaluate, shared_flags

from .conftest import write_image

HELD_OUT = " (held-out images; the others are for training)"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cifar", r"Did you mean cifar10\?"),
        ("qqq", r"The datasets are digits, .*tfds:NAME\."),
    ],
)
def test_unknown_dataset_error_names_alternatives(name, advice):
    with pytest.raises(ValueError, match=rf"takes a folder .* {advice} Received: data='{name}'"):
        shared_flags.check_data_name(name)


def test_datasets_of_tfds_are_accepted():
    shared_flags.check_data_name("tfds:mnist")


@pytest.fixture
def photos(tmp_path):
    """Returns a folder with 20 images of each of two classes."""
    for i in range(40):
        write_image(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", np.full((8, 8, 3), i))
    return tmp_path / "photos"


@pytest.fixture
def load_data(parse):
    """Returns a function that loads the data of `--data` for a model of two classes, which was
    trained with the given `data` fields."""
    layers = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)

    def load(folder, splits=("train", "test"), **trained_on):
        parse(evaluate, f"--data={folder}")
        details = {"recipe": {"data": trained_on}} if trained_on else {}
        return shared_flags.load_data(model, details, splits)

    return load


def _names(source):
    return [source.short_name(i) for i in range(source.num_examples)]


def test_folder_is_split_as_in_the_run(load_data, photos):
    fields = {"test_share": 0.5, "split_seed": 3}
    inputs, _, _ = load_data(photos, name="folder", **fields)
    train, test = data.load("folder", path=str(photos), **fields)
    assert _names(inputs.train) == _names(train)
    assert _names(inputs.test) == _names(test)


@pytest.mark.parametrize(
    ("splits", "trained_on", "number", "note"),
    [
        (("test",), "", 40, " (all images)"),
        (("test",), "elsewhere", 40, " (all images)"),
        (("test",), "photos", 4, HELD_OUT),
        (("train", "test"), "", 4, HELD_OUT),
    ],
    ids=["unknown run", "run of another folder", "run of this folder", "evaluator that trains"],
)
def test_images_of_a_folder_are_held_out_if_needed(
    splits, trained_on, number, note, load_data, photos, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    fields = {"name": "folder", "path": trained_on} if trained_on else {}
    inputs, title, found_note = load_data(photos, splits, **fields)
    assert inputs.test.num_examples == number
    assert (title, found_note) == (f"folder {photos}", note)


def test_test_folder_is_used_whole(load_data, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "split/test")
    inputs, title, note = load_data(tmp_path / "split", ("test",))
    assert inputs.test.num_examples == 40
    assert (title, note) == (f"folder {tmp_path}/split", "")


def test_class_names_may_have_a_byte_order_mark_and_blank_lines(tmp_path):
    names = tmp_path / "names.txt"
    names.write_bytes(b"\xef\xbb\xbfcat\r\n dog\n\n")
    assert shared_flags.read_class_names(str(names), 2) == ["cat", "dog"]
    names.write_bytes("é".encode("latin1"))
    with pytest.raises(ValueError, match="must be a UTF-8 text file .*names.txt"):
        shared_flags.read_class_names(str(names), 1)
