"""Tests of folders, lists, TFRecords and arrays: contents, order and errors."""

import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import data
from keras_vit.data import sources


def read_all(source):
    return [source.read(tf.constant(i, tf.int64)) for i in range(source.num_examples)]


def test_folder_is_sorted_by_class_and_file_name(photos, images_of):
    source = data.folder(photos)
    assert source.class_names == ("ant", "bee", "cat") and source.num_examples == 23
    examples = read_all(source)
    assert [example["image"].numpy() for example in examples] == [images_of(i) for i in range(23)]
    assert [int(example["label"]) for example in examples] == [0] * 12 + [1] * 7 + [2] * 4
    assert source.name_of(12) == str(photos / "bee" / "00.jpg")


def test_folder_with_split_subfolders_loads_each_split(tmp_path, images_of):
    for split, count in (("train", 3), ("test", 2)):
        for name in ("b", "a"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                (tmp_path / split / name / f"{i}.png").write_bytes(images_of(i))
    train, test = data.load("folder", path=str(tmp_path))
    assert (train.num_examples, test.num_examples, train.class_names) == (6, 4, ("a", "b"))
    with pytest.raises(ValueError, match=r"'val'.*|divided into.*"):
        data.folder(tmp_path, "val")


def test_hashed_split_divides_each_class(photos):
    def names(split, seed=0):
        source = data.folder(photos, split, test_share=0.25, split_seed=seed)
        return [source.name_of(i) for i in range(source.num_examples)], source.labels

    (train, train_labels) = names("train")
    (test, test_labels) = names("test")
    assert sorted(train + test) == sorted(str(path) for path in photos.rglob("*.jpg"))
    assert np.bincount(test_labels).tolist() == [3, 2, 1] and np.bincount(
        train_labels
    ).tolist() == [9, 5, 3]
    assert names("test")[0] == test and names("test", seed=1)[0] != test
    (photos / "cat" / "99.jpg").write_bytes(b"another")
    assert {name for name in names("test")[0] if "cat" not in name} == {
        name for name in test if "cat" not in name
    }


def test_entries_that_are_not_images_are_skipped(photos, caplog):
    (photos / "ant" / "notes.txt").write_text("no image")
    (photos / "bee" / "deeper").mkdir()
    assert data.folder(photos).num_examples == 23
    assert "skipped 2 entries that are not image files" in caplog.text


def test_system_folders_are_no_classes_and_links_are_followed(photos, tmp_path):
    for name in ("@eaDir", "__MACOSX", ".ipynb_checkpoints"):
        (photos / name).mkdir()
        (photos / name / "0.jpg").write_bytes(b"")
    (photos / "dog").symlink_to(photos / "bee")
    source = data.folder(photos)
    assert source.class_names == ("ant", "bee", "cat", "dog") and source.num_examples == 30
    assert list(data.folder_splits(photos)) == [""]


def test_warning_of_a_run_is_logged_once(photos, caplog):
    (photos / "ant" / "notes.txt").write_text("no image")
    data.load("folder", path=str(photos))
    assert caplog.text.count("skipped 1 entries") == 1


def test_photos_are_rotated_by_exif_unless_switched_off(tmp_path):
    """Orientation 6 turns the stored image clockwise: its left half becomes the upper half."""
    pixels = np.zeros((8, 8, 3), "uint8")
    pixels[:, :4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a").mkdir()
    for i in range(3):
        Image.fromarray(pixels).save(tmp_path / "a" / f"{i}.jpg", exif=exif, quality=100)
    (tmp_path / "list.csv").write_text("a/0.jpg,a\na/1.jpg,a\n")
    for source in (data.folder(tmp_path), data.file_list(tmp_path / "list.csv")):
        for choice, upright in ({}, True), ({"exif": "off"}, False), ({"exif": "False"}, False):
            batches = data.eval_batches(source, batch_size=1, image_size=8, **choice)
            image = next(iter(batches))[0][0]
            first = image[:4] if upright else image[:, :4]
            np.testing.assert_allclose(first, np.ones_like(first), atol=0.05)
            options = data.Options(image_size=8, train_crop="resize", **choice).resolve(source)
            assert options.exif is upright and options.shift == 0
    records = data.arrays(pixels[None], [0], ["a"])
    assert not data.Options().resolve(records).exif


def test_images_without_classes_are_refused(tmp_path, images_of):
    for name in ("train/a", "train/b", "test"):
        (tmp_path / name).mkdir(parents=True)
        for i in range(2):
            (tmp_path / name / f"{i}.jpg").write_bytes(images_of(i))
    message = f"must contain images as {tmp_path}/test/<class>/<image>"
    with pytest.raises(ValueError, match=re.escape(message)):
        data.load("folder", path=str(tmp_path))
    with pytest.raises(ValueError, match=re.escape(message)):
        data.folder_splits(tmp_path)
    train, test = data.load("folder", path=f"{tmp_path}/train")
    assert (train.num_examples, test.num_examples) == (2, 2)


@pytest.mark.parametrize("header", ["", "file,label\n"])
def test_csv_list_names_files_and_classes(photos, header):
    path = photos / "some.csv"
    path.write_text(header + "bee/01.jpg,sting\nant/03.jpg, crawl\n")
    source = data.file_list(path)
    assert source.class_names == ("crawl", "sting") and source.labels.tolist() == [1, 0]
    assert [source.name_of(i) for i in (0, 1)] == [
        str(photos / "bee" / "01.jpg"),
        str(photos / "ant" / "03.jpg"),
    ]
    assert read_all(source)[1]["image"] == (photos / "ant" / "03.jpg").read_bytes()


def test_text_list_accepts_integer_labels_and_a_root(photos, tmp_path):
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
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
            )


def test_tfrecords_are_read_by_index_across_files(tmp_path, images_of):
    write_records(tmp_path / "train-0", map(images_of, range(4)), [1, 2, 3, 1])
    write_records(tmp_path / "train-1", map(images_of, range(4, 7)), [2, 2, 3])
    source = data.tfrecords(tmp_path / "train-*", ["a", "b", "c"], label_offset=1)
    order = [5, 0, 6, 3, 4, 1, 2]
    dataset = tf.data.Dataset.from_tensor_slices(order).map(
        lambda i: source.read(tf.cast(i, tf.int64))
    )
    assert [example["image"].numpy() for example in dataset] == [images_of(i) for i in order]
    assert [int(example["label"]) for example in dataset] == [
        [0, 1, 2, 0, 1, 1, 2][i] for i in order
    ]
    assert source.name_of(5) == f"{tmp_path}/train-1 record 1"


def test_corrupt_record_has_weight_zero(tmp_path, images_of):
    path = tmp_path / "records"
    write_records(path, map(images_of, range(5)), [0, 1, 0, 1, 0])
    content = bytearray(path.read_bytes())
    content[content.index(images_of(2)) + 200] ^= 1
    path.write_bytes(content)
    source = data.tfrecords(path, ["a", "b"])
    weights = [
        batch[2].numpy().tolist() for batch in data.eval_batches(source, batch_size=5, image_size=8)
    ]
    assert weights == [[1, 1, 0, 1, 1]]


def write(path, content):
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: data.folder(p / "nowhere"), "must be an existing folder.*nowhere"),
        (lambda p: data.folder(p / "photos" / "ant"), "must contain images as"),
        (lambda p: data.folder(p / "photos", "half"), "'half'"),
        (lambda p: data.folder(p / "photos", class_names=["ant", "bee"]), r"\['cat'\]"),
        (lambda p: data.file_list(p / "nowhere.csv"), "No such file"),
        (lambda p: data.file_list(write(p / "empty.csv", "")), "list is empty"),
        (
            lambda p: data.file_list(write(p / "one.csv", "file,label\n\na.jpg\n")),
            "a file and a label.*a.jpg.*line 3",
        ),
        (
            lambda p: data.file_list(write(p / "gone.csv", "photos/ant/00.jpg,a\nphotos/x,b\n")),
            "1 of 2 .* missing.*x",
        ),
        (
            lambda p: data.file_list(write(p / "e.csv", "photos/ant/99,a\n")),
            "1 of 1 .* missing.*ant/99",
        ),
        (
            lambda p: data.file_list(
                write(p / "l.csv", "photos/ant/00.jpg,a\n"), class_names=["b"]
            ),
            "among the 1 .*'a'",
        ),
        (
            lambda p: data.file_list(
                write(p / "n.csv", "photos/ant/00.jpg,7\n"), class_names=["a", "b"]
            ),
            "from 7 to 7",
        ),
        (lambda p: data.tfrecords(p / "no-*", ["a"]), "must match at least one file"),
        (
            lambda p: data.tfrecords(write(p / "text", "not a file of TFRecords"), ["a"]),
            "broken at .* byte 0",
        ),
    ],
)
def test_rejects_unusable_data_before_training(photos, tmp_path, make, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path)


def test_rejects_records_with_wrong_features_or_labels(tmp_path, images_of):
    write_records(tmp_path / "r", [images_of(0)], [3], ("jpeg", "class"))
    names = ["a", "b", "c"]
    keys = {"image_key": "jpeg", "label_key": "class"}
    with pytest.raises(ValueError, match=r"--config.data.image_key.*record 0"):
        data.tfrecords(tmp_path / "r", names)
    with pytest.raises(ValueError, match=r"from 0 to 2. Received: 3 in .*r record 0"):
        data.tfrecords(tmp_path / "r", names, **keys)
    assert not data.verify(data.tfrecords(tmp_path / "r", names, **keys, label_offset=1))["bad"]


def test_verify_finds_out_of_range_labels(tmp_path, images_of):
    write_records(tmp_path / "r", map(images_of, range(4)), [0, 1, 7, 0])
    report = data.verify(data.tfrecords(tmp_path / "r", ["a", "b"]))
    assert report["bad"] == [f"{tmp_path}/r record 2"]
    assert re.search("from 0 to 1.*but is: 7", report["reasons"][report["bad"][0]])


@pytest.mark.parametrize(
    ("name", "details", "message"),
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
def test_rejects_fields_without_effect_on_the_dataset(name, details, message):
    with pytest.raises(ValueError, match=message):
        data.load(name, **details)


def test_only_training_split_must_contain_every_class(tmp_path, images_of, caplog):
    for folder in ("train/a", "train/b", "test/a"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "0.jpg").write_bytes(images_of(0))
    train, test = data.load("folder", path=str(tmp_path))
    assert train.class_names == test.class_names == ("a", "b") and test.num_examples == 1
    assert "1 classes have no examples in the test split" in caplog.text and "['b']" in caplog.text
    with pytest.raises(ValueError, match=r"must not be empty.*no examples of \['b'\]"):
        data.check_splits(test, train)
    (tmp_path / "test" / "c").mkdir()
    with pytest.raises(
        ValueError, match=r"Subfolders must have the names of classes. Received: \['c'\]"
    ):
        data.load("folder", path=str(tmp_path))


def test_hashed_split_of_small_classes(tmp_path, images_of, caplog):
    """For any `test_share`, a class with one image has no test image. A class with two images has
    one test image."""
    for name, count in (("one", 1), ("two", 2), ("ten", 10)):
        (tmp_path / name).mkdir()
        for i in range(count):
            (tmp_path / name / f"{i}.jpg").write_bytes(images_of(i))
    for share, expected in ((0.1, [0, 1, 1]), (0.9, [0, 9, 1])):
        train, test = data.load("folder", path=str(tmp_path), test_share=share)
        assert np.bincount(test.labels, minlength=3).tolist() == expected
        assert np.bincount(train.labels).tolist() == [1, 10 - expected[1], 1]
    assert (
        "no examples in the test split" in caplog.text and "test_share or split_seed" in caplog.text
    )
    for name in ("two", "ten"):
        for path in (tmp_path / name).glob("[1-9].jpg"):
            path.unlink()
    with pytest.raises(
        ValueError,
        match="no images, because .*data.test_share.*split='test'",
    ):
        data.load("folder", path=str(tmp_path))


def lists_of(folder, *texts):
    for number, text in enumerate(texts):
        (folder / f"{number}.csv").write_text(text)
    return {
        "path": str(folder),
        "train_split": str(folder / "0.csv"),
        "test_split": str(folder / "1.csv"),
    }


def test_lists_share_the_classes_of_the_training_list(photos):
    train = "ant/00.jpg,1\nant/01.jpg,2\nant/02.jpg,3\n"
    test = "bee/00.jpg,1\nbee/01.jpg,2\n"
    (photos / "names").write_text("1\n2\n3\n")
    fields = lists_of(photos, train, test)
    # The labels 1, 2 and 3 are class names, not indices.
    one, other = data.load("list", **fields, class_names=str(photos / "names"))
    assert one.labels.tolist() == [0, 1, 2] and other.labels.tolist() == [0, 1]
    fields = lists_of(photos, "ant/00.jpg,0\nant/01.jpg,1\nant/02.jpg,2\n", test)
    with pytest.raises(ValueError, match=r"among the 3 classes. Received: \['0'\]"):
        data.load("list", **fields, class_names=str(photos / "names"))
    one, other = data.load("list", **fields)
    assert one.labels.tolist() == [0, 1, 2] and other.labels.tolist() == [1, 2]
    fields = lists_of(photos, "ant/00.jpg,x\nant/01.jpg,y\n", "bee/00.jpg,y\n")
    one, other = data.load("list", **fields)
    assert other.class_names == ("x", "y") and other.labels.tolist() == [1]


def test_integer_labels_start_at_0(photos):
    fields = lists_of(photos, "ant/00.jpg,1\nant/01.jpg,2\n", "bee/00.jpg,1\n")
    with pytest.raises(ValueError, match=r"Integer labels start at 0.*no examples of \['0'\]"):
        data.load("list", **fields)


def test_integer_labels_do_not_index_training_class_names(photos, tmp_path):
    (tmp_path / "train.txt").write_text(
        "".join(f"{path} {path.parent.name}\n" for path in sorted(photos.rglob("*.*")))
    )
    (tmp_path / "test.txt").write_text(f"{sorted(photos.rglob('*.*'))[0]} 1\n")
    with pytest.raises(ValueError, match=r"Labels must be among the \d classes. Received: \['1'\]"):
        data.load("list", train_split=f"{tmp_path}/train.txt", test_split=f"{tmp_path}/test.txt")


@pytest.mark.parametrize("label", ["-1", "nan", "0.0", "?"])
def test_rejects_mixed_integer_and_name_labels(label, photos):
    path = photos / "labels.csv"
    path.write_text(f"file,label\nant/00.jpg,10\nant/01.jpg,{label}\nant/02.jpg,2\n")
    with pytest.raises(
        ValueError,
        match=(f"all integers or .*: '{re.escape(label)}' in line 3"),
    ):
        data.file_list(path)


def test_rejects_files_with_two_labels(photos):
    (photos / "l.csv").write_text("ant/00.jpg,a\nant/01.jpg,b\nant/00.jpg,a\nant/00.jpg,b\n")
    with pytest.raises(ValueError, match=r"several labels for \['.*ant/00.jpg'\] in"):
        data.file_list(photos / "l.csv")


def test_rejects_duplicate_class_names(photos):
    (photos / "names").write_text("ant\nbee\ncat\nant\n")
    with pytest.raises(ValueError, match=r"must be unique. Received: \['ant'\] more than once"):
        data.load_split("folder", "train", path=str(photos), class_names=str(photos / "names"))


def test_both_unicode_forms_of_a_name_are_one_class(tmp_path, images_of):
    """An accented e in a file name can be one character, or a letter followed by a combining
    accent."""
    for split, name in (("train", "caf\u00e9"), ("test", "cafe\u0301")):
        (tmp_path / split / name).mkdir(parents=True)
        (tmp_path / split / name / "0.jpg").write_bytes(images_of(0))
    train, test = data.load("folder", path=str(tmp_path))
    assert train.class_names == test.class_names == ("caf\u00e9",)
    assert read_all(test)[0]["image"] == images_of(0)


@pytest.mark.parametrize("name", ["list", "tfrecords"])
def test_error_for_missing_splits_shows_the_flags(name, photos):
    fields = {"classes": 3} if name == "tfrecords" else {}
    with pytest.raises(
        ValueError,
        match="train_split and .*train_split='train'",
    ):
        data.load(name, path=str(photos), **fields)


def test_rejects_compressed_records(tmp_path, images_of):
    for kind in ("GZIP", "ZLIB"):
        path = str(tmp_path / kind)
        with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(kind)) as writer:
            writer.write(b"x" * 100)
        with pytest.raises(ValueError, match=f"\\(use gunzip\\). Received: '.*{kind}'"):
            data.tfrecords(path, ["a"])


def test_number_of_local_records_is_checked(tmp_path, images_of):
    write_records(tmp_path / "r", map(images_of, range(2)), [0, 1])
    assert data.tfrecords(tmp_path / "r", ["a", "b"], num_examples=2).num_examples == 2
    with pytest.raises(ValueError, match="Received: num_examples=3, 2 records in .*r'"):
        data.tfrecords(tmp_path / "r", ["a", "b"], num_examples=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"images": np.zeros((2, 4, 4, 3))},
            "only uint8 and uint16 .*dtype=float64",
        ),
        (
            {"images": np.zeros((2, 4, 4), np.uint8)},
            r"`images` must be numbers .*shape=\(2, 4, 4\)",
        ),
        ({"images": np.zeros((0, 4, 4, 3), np.uint8), "labels": []}, "no dimension of size 0"),
        ({"labels": [0]}, r"`labels` must be 2 integers, .*shape=\(1,\)"),
        ({"labels": [0.0, 1.0]}, "Received: dtype=float64"),
        (
            {"labels": [0, 2]},
            "from 0 to 1. Received: labels from 0 to 2",
        ),
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


def test_splits_with_common_examples_are_refused(tmp_path, photos, images_of, caplog):
    for number in range(3):
        write_records(tmp_path / f"r-{number}", [images_of(0), images_of(1)], [0, 1])
        (photos / f"{number}.csv").write_text(f"ant/0{number}.jpg,a\nbee/00.jpg,b\n")
    lists = {"train_split": f"{photos}/0.csv", "test_split": f"{photos}/1.csv"}
    common = [
        {"name": "digits", "train_split": "train", "test_split": "tune_val"},
        {"name": "digits", "train_split": "test[:30]", "test_split": "test"},
        {"name": "folder", "path": str(photos), "train_split": "train", "test_split": "tune_val"},
        {
            "name": "tfrecords",
            "path": str(tmp_path),
            "classes": 2,
            "train_split": "r-*",
            "test_split": "r-2",
        },
        {"name": "list", **lists},
    ]
    for fields in common:
        with pytest.raises(
            ValueError, match="no common examples.*Received: train_split='.*', test_split='"
        ):
            data.load(**fields)
    data.load(**common[3] | {"train_split": "r-[01]"})
    data.load(**common[2] | {"train_split": "tune_train"})
    assert "splits are equal" not in caplog.text
    data.load("digits", train_split="test", test_split="test")
    assert "splits are equal: train_split=test_split='test'" in caplog.text


def test_classes_and_class_names_must_agree(tmp_path, images_of):
    write_records(tmp_path / "r", map(images_of, range(2)), [0, 1])
    (tmp_path / "names").write_text("a\nb\n")
    fields = {"path": str(tmp_path), "class_names": str(tmp_path / "names")}
    assert data.load_split("tfrecords", "r", **fields, classes=2).class_names == ("a", "b")
    with pytest.raises(ValueError, match="classes=3, 2 names in class_names='.*names'"):
        data.load_split("tfrecords", "r", **fields, classes=3)


def test_record_with_a_wrong_label_is_named(tmp_path, images_of):
    write_records(tmp_path / "r", map(images_of, range(4)), [1, 0, 2, 1])
    source = data.tfrecords(tmp_path / "r", ["a", "b"])  # the labels start at 1
    inputs = data.InputPipeline(source, source, {"image_size": 8}, 4, 0, 1.0)
    bad = inputs.bad_examples("test")
    list(inputs.eval_batches())
    with pytest.raises(
        ValueError, match="from 0 to 1.*label_offset.*Received: label=2 in .*r record 2"
    ):
        bad.update(0)


def test_digits_split_is_stable():
    train, test = data.load("digits")
    assert (train.num_examples, test.num_examples, train.max_value) == (1437, 360, 16)
    assert np.bincount(test.labels).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]


@pytest.fixture
def remote(images_of, monkeypatch, tmp_path):
    """Writes three remote files of 5 records each and returns a glob pattern for them. The cache
    folder is empty."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "cache"))
    for number in range(3):
        write_records(
            f"ram://{tmp_path.name}/train-{number}", [images_of(i) for i in range(5)], [number] * 5
        )
    return f"ram://{tmp_path.name}/train-*"


def test_remote_records_are_counted_once_and_read_in_order(remote, monkeypatch):
    source = data.tfrecords(remote, ["a", "b", "c"])
    assert source.read is None and source.num_examples == 15
    assert source.name_of(7) == remote.replace("*", "1") + " record 2"
    monkeypatch.setattr(sources.tfrecords, "count_records", None)
    assert data.tfrecords(remote, ["a", "b", "c"], num_examples=15).num_examples == 15
    labels = [int(source.shards.parse(record)["label"]) for _, record in source.shards.in_order()]
    assert labels == [0] * 5 + [1] * 5 + [2] * 5
    weights = np.concatenate(
        [batch[2] for batch in data.eval_batches(source, batch_size=4, image_size=8)]
    )
    assert weights.tolist() == [1] * 15 + [0]
    with pytest.raises(ValueError, match="Received: num_examples=16, 15 records"):
        data.tfrecords(remote, ["a", "b", "c"], num_examples=16)


def test_rejects_damaged_remote_file(remote, images_of):
    file = remote.replace("*", "1")
    with tf.io.gfile.GFile(file, "rb") as stream:
        content = bytearray(stream.read())
    content[content.index(images_of(2)) + 200] ^= 1
    tf.io.gfile.remove(file)  # this file system appends to existing files
    with tf.io.gfile.GFile(file, "wb") as stream:
        stream.write(bytes(content))
    with pytest.raises(ValueError, match="TFRecord file must be complete.*train-1"):
        data.tfrecords(remote, ["a", "b", "c"])


def test_deleted_remote_file_does_not_stall_reading(remote):
    source = data.tfrecords(remote, ["a", "b", "c"])
    tf.io.gfile.remove(remote.replace("*", "1"))
    ((*_, weights),) = data.eval_batches(source, batch_size=15, image_size=8)
    assert np.flatnonzero(weights == 0).tolist() == [5, 6, 7, 8, 9]


def _patients(split, path, **fields):
    """Returns the patients of a split, whose images are named `p3_0.jpg`."""
    source = data.load_split("folder", split, path=str(path), groups=r"^(p\d+)_", **fields)
    return {source.short_name(i).split("_")[0] for i in range(source.num_examples)}


def _save_patients(path, images_of, count=10):
    """Saves three images of each patient; patients with an even number are ill in one of them."""
    rows = []
    for i in range(3 * count):
        patient = i // 3
        name = "ill" if patient % 2 == 0 and i % 3 == 0 else "well"
        file = path / name / f"p{patient}_{i % 3}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(images_of(i % 20))
        rows.append(f"{name}/{file.name},{name},p{patient}\n")
    return rows


@pytest.mark.parametrize("fields", [{"test_share": 0.3}, {"split_seed": 4}, {"fold": "2/3"}])
def test_images_of_a_group_are_never_divided(tmp_path, images_of, fields):
    _save_patients(tmp_path, images_of)
    train, test = (_patients(split, tmp_path, **fields) for split in ("train", "test"))
    assert train and test and not train & test and len(train | test) == 10
    tune = [_patients(split, tmp_path, **fields) for split in ("tune_train", "tune_val")]
    assert all(tune) and not tune[0] & tune[1] and tune[0] | tune[1] == train


def test_each_image_is_tested_in_one_fold(photos):
    tested = []
    for fold in ("1/3", "2/3", "3/3"):
        sources = data.load("folder", path=str(photos), fold=fold)
        assert sum(source.num_examples for source in sources) == 23
        tested += [sources[1].name_of(i) for i in range(sources[1].num_examples)]
        assert np.bincount(sources[1].labels).min() >= 1
    assert sorted(tested) == sorted(str(path) for path in photos.rglob("*.jpg"))


@pytest.mark.parametrize("groups", ["patient", r"(p\d+)_"])
def test_list_is_divided_by_a_column_or_a_pattern(tmp_path, images_of, groups):
    rows = _save_patients(tmp_path, images_of)
    (tmp_path / "all.csv").write_text("file,label,patient\n" + "".join(rows))
    if groups != "patient":
        (tmp_path / "all.csv").write_text("".join(row.rpartition(",")[0] + "\n" for row in rows))
    sources = data.load("list", path=str(tmp_path / "all.csv"), groups=groups, fold="1/4")
    train, test = (
        {source.short_name(i).split("_")[0] for i in range(source.num_examples)}
        for source in sources
    )
    assert train and test and not train & test and len(train | test) == 10
    assert sources[0].class_names == sources[1].class_names == ("ill", "well")


def test_groups_that_cannot_be_honored_are_refused(tmp_path, photos, images_of):
    for groups, message in (
        (
            r"^(p\d+)_",
            "that is in the name of each image. Received: groups='^(p\\\\d+)_', '00.jpg'",
        ),
        ("0", "regular expression with one"),
        ("(", "`groups` must be a regular expression"),
        (r"\d*(x?)", "that is in the name of each image"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            data.load("folder", path=str(photos), groups=groups)
    with pytest.raises(ValueError, match="classes with a single group are only used for training"):
        data.load("folder", path=str(photos), groups="([.])jpg")
    for fold in ("0/5", "6/5", "1/1", "x"):
        with pytest.raises(ValueError, match=f"such as 1/5. Received: fold='{fold}'"):
            data.load("folder", path=str(photos), fold=fold)
    photos.rename(tmp_path / "train")
    for name, fields in ("folder", {"path": str(tmp_path)}), ("list", {}):
        with pytest.raises(ValueError, match="apply to data without own splits"):
            data.load(name, groups="(.)", **fields)
    for name in ("tfds:mnist", "tfrecords"):
        with pytest.raises(ValueError, match=f"{name}' takes only the fields .* groups='label'"):
            data.load(name, groups="label")
