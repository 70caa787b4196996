"""Folders, lists, TFRecords and arrays: what they hold, in which order, and what they refuse."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data


def read_all(source):
    return [source.read(tf.constant(i, tf.int64)) for i in range(source.num_examples)]


def test_a_folder_is_its_classes_and_files_in_the_order_of_their_names(photos, images_of):
    source = data.folder(photos)
    assert source.class_names == ("ant", "bee", "cat") and source.num_examples == 23
    examples = read_all(source)
    assert [example["image"].numpy() for example in examples] == [images_of(i) for i in range(23)]
    assert [int(example["label"]) for example in examples] == [0] * 12 + [1] * 7 + [2] * 4
    assert source.name_of(12) == str(photos / "bee" / "00.jpg")


def test_a_folder_with_splits_gives_each(tmp_path, images_of):
    for split, count in (("train", 3), ("test", 2)):
        for name in ("b", "a"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                (tmp_path / split / name / f"{i}.png").write_bytes(images_of(i))
    train, test = data.load("folder", path=str(tmp_path))
    assert (train.num_examples, test.num_examples, train.class_names) == (6, 4, ("a", "b"))
    with pytest.raises(ValueError, match=r"'val'.*|divided into.*"):
        data.folder(tmp_path, "val")


def test_a_hashed_split_divides_each_class_and_follows_nothing_but_its_seed(photos):
    def names(split, seed=0):
        source = data.folder(photos, split, test_share=0.25, split_seed=seed)
        return [source.name_of(i) for i in range(source.num_examples)], source.labels

    (train, train_labels), (test, test_labels) = names("train"), names("test")
    assert sorted(train + test) == sorted(str(path) for path in photos.rglob("*.jpg"))
    assert np.bincount(test_labels).tolist() == [3, 2, 1] and np.bincount(train_labels).tolist() == [9, 5, 3]
    assert names("test")[0] == test and names("test", seed=1)[0] != test
    (photos / "cat" / "99.jpg").write_bytes(b"another")
    assert {name for name in names("test")[0] if "cat" not in name} == {name for name in test if "cat" not in name}


def test_files_that_are_no_images_are_left_out_and_counted(photos, caplog):
    (photos / "ant" / "notes.txt").write_text("no image")
    (photos / "bee" / "deeper").mkdir()
    assert data.folder(photos).num_examples == 23
    assert "2 entries are not files that end like images" in caplog.text


@pytest.mark.parametrize("header", ["", "file,label\n"])
def test_a_csv_names_files_and_classes(photos, header):
    path = photos / "some.csv"
    path.write_text(header + "bee/01.jpg,sting\nant/03.jpg, crawl\n")
    source = data.file_list(path)
    assert source.class_names == ("crawl", "sting") and source.labels.tolist() == [1, 0]
    assert [source.name_of(i) for i in (0, 1)] == [str(photos / "bee" / "01.jpg"), str(photos / "ant" / "03.jpg")]
    assert read_all(source)[1]["image"] == (photos / "ant" / "03.jpg").read_bytes()


def test_a_text_list_may_have_integer_labels_and_another_root(photos, tmp_path):
    (tmp_path / "list.txt").write_text("bee/01.jpg 2\nant/03.jpg\t0\n\n")
    source = data.file_list(tmp_path / "list.txt", root=photos)
    assert source.class_names == ("0", "1", "2") and source.labels.tolist() == [2, 0]


def write_records(path, images, labels, keys=("image/encoded", "image/class/label")):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in zip(images, labels):
            feature = {
                keys[0]: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                keys[1]: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def test_tfrecords_are_read_by_index_across_files(tmp_path, images_of):
    write_records(tmp_path / "train-0", map(images_of, range(4)), [1, 2, 3, 1])
    write_records(tmp_path / "train-1", map(images_of, range(4, 7)), [2, 2, 3])
    source = data.tfrecords(tmp_path / "train-*", ["a", "b", "c"], label_offset=1)
    order = [5, 0, 6, 3, 4, 1, 2]
    dataset = tf.data.Dataset.from_tensor_slices(order).map(lambda i: source.read(tf.cast(i, tf.int64)))
    assert [example["image"].numpy() for example in dataset] == [images_of(i) for i in order]
    assert [int(example["label"]) for example in dataset] == [[0, 1, 2, 0, 1, 1, 2][i] for i in order]
    assert source.name_of(5) == f"{tmp_path}/train-1 record 1"


def test_a_corrupt_record_is_one_bad_example(tmp_path, images_of):
    path = tmp_path / "records"
    write_records(path, map(images_of, range(5)), [0, 1, 0, 1, 0])
    content = bytearray(path.read_bytes())
    content[content.index(images_of(2)) + 200] ^= 1
    path.write_bytes(content)
    source = data.tfrecords(path, ["a", "b"])
    weights = [batch[2].numpy().tolist() for batch in data.eval_batches(source, batch_size=5, image_size=8)]
    assert weights == [[1, 1, 0, 1, 1]]


def write(path, content):
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: data.folder(p / "nowhere"), "no such folder.*nowhere"),
        (lambda p: data.folder(p / "photos" / "ant"), "here are none"),
        (lambda p: data.folder(p / "photos", "half"), "'half'"),
        (lambda p: data.folder(p / "photos", class_names=["ant", "bee"]), r"\['cat'\]"),
        (lambda p: data.file_list(p / "nowhere.csv"), "no such file"),
        (lambda p: data.file_list(write(p / "empty.csv", "")), "list is empty"),
        (lambda p: data.file_list(write(p / "one.csv", "a.jpg\n")), "a file and a label.*a.jpg"),
        (lambda p: data.file_list(write(p / "gone.csv", "photos/ant/00.jpg,a\nphotos/x,b\n")), "1 of 2 .* missing.*x"),
        (lambda p: data.file_list(write(p / "l.csv", "photos/ant/00.jpg,a\n"), class_names=["b"]), "among the 1 .*'a'"),
        (lambda p: data.file_list(write(p / "n.csv", "photos/ant/00.jpg,7\n"), class_names=["a", "b"]), "from 7 to 7"),
        (lambda p: data.tfrecords(p / "no-*", ["a"]), "No file matches"),
        (lambda p: data.tfrecords(write(p / "text", "this is no file of records, by far"), ["a"]), "broken at byte 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_refused_before_training(photos, tmp_path, make, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path)


def test_tfrecords_of_other_features_or_labels_are_refused(tmp_path, images_of):
    write_records(tmp_path / "r", [images_of(0)], [3], ("jpeg", "class"))
    with pytest.raises(ValueError, match=r"'image/encoded'.*record 0"):
        data.tfrecords(tmp_path / "r", ["a"])
    with pytest.raises(ValueError, match="from 3 to 3"):
        data.tfrecords(tmp_path / "r", ["a", "b", "c"], image_key="jpeg", label_key="class")
    data.tfrecords(tmp_path / "r", ["a", "b", "c"], image_key="jpeg", label_key="class", label_offset=1)


def test_the_scan_finds_a_label_out_of_range_between_records_in_range(tmp_path, images_of):
    write_records(tmp_path / "r", map(images_of, range(4)), [0, 1, 7, 0])
    report = data.verify(data.tfrecords(tmp_path / "r", ["a", "b"]))
    assert report["bad"] == [f"{tmp_path}/r record 2"]
    assert "not in 0 to 1: 7" in report["reasons"][report["bad"][0]]


@pytest.mark.parametrize(
    ("name", "details", "message"),
    [
        ("digits", {"path": "photos"}, r"by name, split alone.*path='photos'"),
        ("folder", {"path": "photos", "image_key": "x", "classes": 3}, r"test_share.*classes=3, image_key='x'"),
        ("cifar10", {"test_share": 0.5}, r"'cifar10'.*test_share=0.5"),
    ],
)
def test_what_would_have_no_effect_on_a_dataset_is_refused(name, details, message):
    with pytest.raises(ValueError, match=message):
        data.load(name, **details)


def test_a_class_that_a_split_does_not_have_is_refused(tmp_path, images_of):
    for folder in ("train/a", "train/b", "test/a"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "0.jpg").write_bytes(images_of(0))
    with pytest.raises(ValueError, match=r"same classes.*only in train=\['b'\]"):
        data.load("folder", path=str(tmp_path))
    (tmp_path / "test" / "b").mkdir()
    with pytest.raises(ValueError, match=r"test split.*'b'"):
        data.load("folder", path=str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": np.zeros((2, 4, 4, 3))}, "`images` must be uint8.*Received: dtype=float64"),
        ({"images": np.zeros((2, 4, 4), np.uint8)}, r"`images` must be uint8 .*shape=\(2, 4, 4\)"),
        ({"images": np.zeros((0, 4, 4, 3), np.uint8), "labels": []}, "N of 1 or more"),
        ({"labels": [0]}, r"`labels` must be 2 integers, one for each image. Received: .*shape=\(1,\)"),
        ({"labels": [0.0, 1.0]}, "Received: dtype=float64"),
        ({"labels": [0, 2]}, "Labels of 2 classes are 0 to 1. Received: labels from 0 to 2"),
        ({"labels": [-1, 0]}, "Received: labels from -1 to 0"),
        ({"max_value": 3, "images": np.full((2, 4, 4, 3), 9, np.uint8)}, "`max_value`, 3. Received: a pixel of 9"),
    ],
)
def test_bad_arrays_are_refused(arguments, message):
    good = {"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": [0, 1], "class_names": ["a", "b"]}
    with pytest.raises(ValueError, match=message):
        data.arrays(**{**good, **arguments})


def test_the_digits_are_divided_the_same_way_always():
    train, test = data.load("digits")
    assert (train.num_examples, test.num_examples, train.max_value) == (1437, 360, 16)
    assert np.bincount(test.labels).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]


@pytest.fixture
def remote(images_of, monkeypatch, tmp_path):
    """The pattern of three remote files of 5 records, in a cache folder of their own."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    for number in range(3):
        write_records(f"ram://{tmp_path.name}/train-{number}", [images_of(i) for i in range(5)], [number] * 5)
    return f"ram://{tmp_path.name}/train-*"


def test_remote_records_are_counted_once_and_read_in_order(remote, monkeypatch):
    source = data.tfrecords(remote, ["a", "b", "c"])
    assert source.read is None and source.num_examples == 15
    assert source.name_of(7) == remote.replace("*", "1") + " record 2"
    monkeypatch.setattr(sys.modules["keras_vit.data.sources.tfrecords"], "count_records", None)
    assert data.tfrecords(remote, ["a", "b", "c"], num_examples=15).num_examples == 15
    labels = [int(source.shards.parse(record)["label"]) for _, record in source.shards.in_order()]
    assert labels == [0] * 5 + [1] * 5 + [2] * 5
    weights = np.concatenate([batch[2] for batch in data.eval_batches(source, batch_size=4, image_size=8)])
    assert weights.tolist() == [1] * 15 + [0]
    with pytest.raises(ValueError, match="what the files hold, 15. Received: num_examples=16"):
        data.tfrecords(remote, ["a", "b", "c"], num_examples=16)


def test_what_follows_a_broken_remote_record_is_bad_and_moves_no_other(remote, images_of, caplog):
    file = remote.replace("*", "1")
    with tf.io.gfile.GFile(file, "rb") as stream:
        content = bytearray(stream.read())
    content[content.index(images_of(2)) + 200] ^= 1
    tf.io.gfile.remove(file)  # this file system appends to a file that is there
    with tf.io.gfile.GFile(file, "wb") as stream:
        stream.write(bytes(content))
    assert data.tfrecords(remote, ["a", "b", "c"]).num_examples == 12 and "train-1 is broken after 2" in caplog.text
    source = data.tfrecords(remote, ["a", "b", "c"], num_examples=15)
    ((*_, weights),) = data.eval_batches(source, batch_size=15, image_size=8)
    assert np.flatnonzero(weights == 0).tolist() == [7, 8, 9]
    report = data.verify(source)
    assert report["bad"] == [f"{file} record {number}" for number in (2, 3, 4)]


def test_a_remote_file_that_has_gone_holds_nothing_up(remote):
    source = data.tfrecords(remote, ["a", "b", "c"])
    tf.io.gfile.remove(remote.replace("*", "1"))
    ((*_, weights),) = data.eval_batches(source, batch_size=15, image_size=8)
    assert np.flatnonzero(weights == 0).tolist() == [5, 6, 7, 8, 9]
