"""Tests of the data fingerprint."""

import numpy as np
import pytest

from keras_vit import data

from .helpers import jpeg, write_records

IMAGES = np.zeros((3, 4, 4, 3), np.uint8)


def fingerprint(train, test=None):
    return data.InputPipeline(train, test or train, {"image_size": 8}, 2, 0, 0.01).fingerprint()


def test_moving_a_folder_keeps_its_fingerprint(photos):
    before = fingerprint(data.folder(photos))
    moved = photos.rename(photos.parent / "moved")
    assert fingerprint(data.folder(moved)) == before


def test_sizes_and_names_of_files_are_part_of_the_fingerprint(photos):
    before = fingerprint(data.folder(photos))
    (photos / "bee" / "00.jpg").write_bytes(jpeg(99) + b"more")
    changed = fingerprint(data.folder(photos))
    assert changed[:3] == before[:3] and changed != before
    (photos / "ant" / "00.jpg").rename(photos / "ant" / "aa.jpg")
    assert fingerprint(data.folder(photos)) not in (before, changed)


def test_labels_are_part_of_the_fingerprint(photos):
    fingerprints = []
    for label in ("a", "b"):
        path = photos / f"{label}.csv"
        path.write_text(f"ant/00.jpg,a\nant/01.jpg,b\nant/02.jpg,{label}\n")
        fingerprints.append(fingerprint(data.file_list(path)))
    assert fingerprints[0][:3] == fingerprints[1][:3] and fingerprints[0] != fingerprints[1]


@pytest.mark.parametrize("kind", ["list", "records"])
def test_moving_lists_and_records_keeps_their_fingerprint(kind, tmp_path):
    def fingerprint_of(folder, second):
        """Writes images to a folder, of which the second has this number."""
        (tmp_path / folder).mkdir()
        for number in (0, second):
            (tmp_path / folder / f"{number}.jpg").write_bytes(jpeg(number))
        (tmp_path / folder / "all.csv").write_text(f"0.jpg,a\n{second}.jpg,b\n")
        write_records(tmp_path / folder / "train-0", [jpeg(second)], [0])
        if kind == "list":
            return fingerprint(data.file_list(tmp_path / folder / "all.csv"))
        return fingerprint(data.tfrecords(tmp_path / folder / "train-*", ["a"]))

    before = fingerprint_of("one", 1)
    assert fingerprint_of("two", 1) == before != fingerprint_of("three", 2)


def test_pixels_of_arrays_are_part_of_the_fingerprint():
    before, changed = (
        fingerprint(data.arrays(images, [0] * 3, ["a"])) for images in (IMAGES, IMAGES + 1)
    )
    assert before[:3] == changed[:3] and before != changed
    assert all(type(number) is int for number in before)


def test_train_data_covers_only_the_training_data():
    one, two = (data.arrays(images, [0] * 3, ["a"]) for images in (IMAGES, IMAGES + 1))
    first = fingerprint(one, one)
    other = fingerprint(one, two)
    assert first.data != other.data
    assert first.train_data == other.train_data != fingerprint(two, two).train_data
