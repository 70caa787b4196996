"""Tests of the flags `--data` and `--class_names`."""

import shutil
import types

import keras
import numpy as np
import pytest

from keras_vit import data
from keras_vit.commands import shared_flags

from .conftest import write_image


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
def load_data(monkeypatch):
    """Returns a function that calls `load_data` with the flag `--data` and a model of two
    classes."""
    layers = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)

    def load(folder, *arguments):
        flags = types.SimpleNamespace(data=str(folder), data_path="")
        monkeypatch.setattr(shared_flags, "FLAGS", flags)
        return shared_flags.load_data(model, *arguments)

    return load


def _names(source):
    return [source.short_name(i) for i in range(source.num_examples)]


def test_folder_is_split_as_in_the_run(load_data, photos):
    fields = {"test_share": 0.5, "split_seed": 3}
    inputs, _ = load_data(photos, {"recipe": {"data": {"name": "folder", **fields}}})
    train, test = data.load("folder", path=str(photos), **fields)
    assert _names(inputs.train) == _names(train)
    assert _names(inputs.test) == _names(test)
    other_inputs, _ = load_data(photos, {})
    assert _names(other_inputs.test) != _names(inputs.test)


HELD_OUT = "(held-out images; the others are for training)"


@pytest.mark.parametrize("trained_on", [None, "elsewhere"])
def test_all_images_of_another_folder_are_test_images(
    trained_on, load_data, photos, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    details = {}
    if trained_on:
        details = {"recipe": {"data": {"name": "folder", "path": trained_on}}}
    inputs, title = load_data("photos", details, ("test",))
    assert inputs.test.num_examples == 40
    assert title == "folder photos (all images)"


def test_held_out_images_of_the_run_s_folder_are_test_images(
    load_data, photos, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    details = {"recipe": {"data": {"name": "folder", "path": "photos"}}}
    inputs, title = load_data(photos, details, ("test",))
    assert inputs.test.num_examples == 4
    assert title == f"folder {photos} {HELD_OUT}"


def test_evaluators_that_train_hold_out_test_images(load_data, photos):
    inputs, title = load_data(photos, {}, ("train", "test"))
    assert inputs.test.num_examples == 4
    assert title == f"folder {photos} {HELD_OUT}"


def test_test_folder_is_used_whole(load_data, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "split" / "test")
    inputs, title = load_data(tmp_path / "split", {}, ("test",))
    assert inputs.test.num_examples == 40
    assert title == f"folder {tmp_path}/split"


def test_class_names_may_have_a_byte_order_mark_and_blank_lines(tmp_path):
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbfcat\r\n dog\n\n")
    assert shared_flags.read_class_names(str(tmp_path / "names.txt"), 2) == ["cat", "dog"]
    (tmp_path / "latin.txt").write_bytes("é".encode("latin1"))
    with pytest.raises(ValueError, match="must be a UTF-8 text file .*latin.txt"):
        shared_flags.read_class_names(str(tmp_path / "latin.txt"), 1)
