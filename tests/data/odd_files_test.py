"""Tests of unusual or damaged files and lists, and of splits."""

import os

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data

from .sources_test import write_records


def names_of(source):
    return [source.name_of(i) for i in range(source.num_examples)]


def test_non_utf8_file_names_are_readable_and_printable(photos, images_of):
    folder = os.fsencode(photos) + b"/caf\xe9"
    os.mkdir(folder)
    for i in range(3):
        with open(folder + b"/\xe9t\xe9 %d.jpg" % i, "wb") as file:
            file.write(images_of(i))
    source = data.folder(photos)
    assert source.class_names == ("ant", "bee", r"caf\xe9", "cat") and source.num_examples == 26
    assert source.read(tf.constant(19, tf.int64))["image"] == images_of(0)
    assert names_of(source)[19].encode().endswith(rb"caf\xe9/\xe9t\xe9 0.jpg")
    train, test = data.load("folder", path=str(photos), test_share=0.4)
    # The four classes have 5, 3, 1 and 2 test images.
    assert (train.num_examples, test.num_examples) == (
        15,
        11,
    )
    assert data.verify(source)["bad"] == []


def test_rejects_unlistable_folder(photos, monkeypatch):
    scandir = os.scandir

    def deny(path):
        if str(path).endswith("bee"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(ValueError, match="cannot be listed.*Permission denied.*bee'$"):
        data.folder(photos)


LINES = "bee/01.jpg,Bär\nant/03.jpg,Ameise\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_file_list_accepts_byte_order_mark(encoding, photos):
    (photos / "list.csv").write_bytes(("file,label\n" + LINES).encode(encoding))
    source = data.file_list(photos / "list.csv")
    assert source.class_names == ("Ameise", "Bär") and source.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LINES.encode("latin-1"), "UTF-8.*byte 0xe4 in position 12.*list.csv"),
        (LINES.encode("utf-16"), "UTF-8.*byte 0xff in position 0"),
        (b"ant/00.jpg,10000000000000000000000\n", "Labels must be below 1,000,000"),
    ],
)
def test_file_list_rejects_other_encodings_and_large_labels(content, message, photos):
    (photos / "list.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        data.file_list(photos / "list.csv")
    with pytest.raises(ValueError, match="Labels must|UTF-8"):
        data.load_split("list", str(photos / "list.csv"), class_names=str(photos / "list.csv"))


@pytest.fixture
def records(tmp_path, images_of):
    path = tmp_path / "train-0"
    write_records(path, map(images_of, range(5)), [0, 1, 0, 1, 0])
    return path


@pytest.mark.full
@pytest.mark.parametrize("number", [0, 4])
def test_flipped_bit_in_record_is_one_bad_example(number, records, images_of):
    content = bytearray(records.read_bytes())
    content[content.index(images_of(number)) + 200] ^= 1
    records.write_bytes(content)
    source = data.tfrecords(records, ["a", "b"])
    ((*_, weights),) = data.eval_batches(source, batch_size=5, image_size=8)
    assert np.flatnonzero(weights == 0).tolist() == [number]
    report = data.verify(source)
    assert (
        report["bad"] == [f"{records} record {number}"]
        and "corrupted" in report["reasons"][report["bad"][0]]
    )


@pytest.mark.parametrize("tail", [bytes(5), bytes(16), bytes(4096)], ids=len)
def test_trailing_zeros_error_reports_the_offset(tail, records):
    size = len(records.read_bytes())
    records.write_bytes(records.read_bytes() + tail)
    with pytest.raises(ValueError, match=f"train-0', broken at or before byte {size}$"):
        data.tfrecords(records, ["a", "b"])


def test_flipped_bit_in_length_error_reports_an_offset(records):
    content = bytearray(records.read_bytes())
    start = 16 + int.from_bytes(content[:8], "little")  # the start of the second record
    for bit in (0, 3, 20, 62):
        damaged = bytearray(content)
        damaged[start + bit // 8] ^= 1 << bit % 8
        records.write_bytes(damaged)
        with pytest.raises(ValueError, match="broken at or before byte") as error:
            data.tfrecords(records, ["a", "b"])
        assert int(str(error.value).split()[-1]) >= start


def test_no_other_split_equals_the_test_split():
    for name, row in data.DATASETS.items():
        if not row.test_tfds:
            others = [words for split, words in row.splits.items() if split != "test"]
            assert row.splits["test"] not in others, name


@pytest.mark.parametrize("divided", [True, False])
def test_tuning_splits_divide_the_training_split(divided, photos, images_of):
    if divided:
        for name in ("ant", "bee", "cat"):
            (photos / "train").mkdir(exist_ok=True)
            (photos / name).rename(photos / "train" / name)
            (photos / "test" / name).mkdir(parents=True)
            (photos / "test" / name / "0.jpg").write_bytes(images_of(0))
    parts = {
        split: names_of(data.folder(photos, split, test_share=0.25))
        for split in ("train", "test", "tune_train", "tune_val")
    }
    assert sorted(parts["tune_train"] + parts["tune_val"]) == sorted(parts["train"])
    assert (
        set(parts["tune_train"]) & set(parts["tune_val"])
        == set(parts["train"]) & set(parts["test"])
        == set()
    )
    # A quarter of the training images of each class, rounded.
    assert len(parts["tune_val"]) == (6 if divided else 4)
