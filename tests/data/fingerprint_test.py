"""Tests of the data fingerprint."""

import numpy as np

from keras_vit import data

from .sources_test import write_records


def fingerprint(train, test=None):
    return data.InputPipeline(train, test or train, {"image_size": 8}, 2, 0, 0.01).fingerprint()


def test_moving_a_folder_keeps_its_fingerprint(photos, images_of):
    before = fingerprint(data.folder(photos))
    moved = photos.rename(photos.parent / "moved")
    assert fingerprint(data.folder(moved)) == before
    (moved / "bee" / "00.jpg").write_bytes(images_of(99) + b"more")
    changed = fingerprint(data.folder(moved))
    assert changed[:3] == before[:3] and changed != before
    (moved / "ant" / "00.jpg").rename(moved / "ant" / "aa.jpg")
    assert fingerprint(data.folder(moved)) not in (before, changed)


def test_labels_and_records_are_part_of_the_fingerprint(photos, images_of):
    lists = []
    for number, label in enumerate(("a", "b")):
        (photos / f"{number}.csv").write_text(f"ant/00.jpg,a\nant/01.jpg,b\nant/02.jpg,{label}\n")
        lists.append(fingerprint(data.file_list(photos / f"{number}.csv")))
    assert lists[0][:3] == lists[1][:3] and lists[0] != lists[1]
    records = photos / "records"
    prints = []
    for first in (0, 1):
        write_records(records, [images_of(first), images_of(2)], [0, 1])
        prints.append(fingerprint(data.tfrecords(records, ["a", "b"])))
    assert prints[0][:3] == prints[1][:3] and prints[0] != prints[1]


def test_moving_lists_and_records_keeps_their_fingerprint(tmp_path, images_of):
    prints = []
    for folder, second in (("one", 1), ("two", 1), ("three", 2)):
        (tmp_path / folder).mkdir()
        for number in (0, second):
            (tmp_path / folder / f"{number}.jpg").write_bytes(images_of(number))
        (tmp_path / folder / "all.csv").write_text(f"0.jpg,a\n{second}.jpg,b\n")
        write_records(tmp_path / folder / f"train-{second}", [images_of(0)], [0])
        sources = (
            data.file_list(tmp_path / folder / "all.csv"),
            data.tfrecords(tmp_path / folder / "train-*", ["a"]),
        )
        prints.append([fingerprint(source) for source in sources])
    assert all(one == two != three for one, two, three in zip(*prints))


def test_pixels_of_arrays_are_part_of_the_fingerprint():
    images = np.zeros((3, 4, 4, 3), np.uint8)
    one = fingerprint(data.arrays(images, [0, 1, 0], ["a", "b"]))
    images[2, 1] = 1
    other = fingerprint(data.arrays(images, [0, 1, 0], ["a", "b"]))
    assert one[:3] == other[:3] and one != other and all(type(number) is int for number in one)


def test_last_number_covers_only_the_training_data():
    one, two = (
        data.arrays(np.full((3, 4, 4, 3), i, np.uint8), [0, 1, 0], ["a", "b"]) for i in range(2)
    )
    first = fingerprint(one, one)
    other = fingerprint(one, two)
    assert first[3] != other[3] and first[4] == other[4] != fingerprint(two, two)[4]
