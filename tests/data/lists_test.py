"""Tests of lists of image files with labels: files, encodings, class names and splits.

`tables_test.py` tests the columns of lists with headers.
"""

import pytest

from keras_vit import data

from .helpers import names_of, read_all


def _splits(folder, train, test):
    """Writes a training and a test list. Each maps file names without endings to labels.

    Returns the fields that load the lists.
    """
    fields = {"path": str(folder)}
    for split, label_of in (("train", train), ("test", test)):
        path = folder / f"{split}.csv"
        path.write_text("".join(f"{name}.jpg,{label}\n" for name, label in label_of.items()))
        fields[f"{split}_split"] = str(path)
    return fields


def test_csv_list_names_files_and_classes(photos):
    (photos / "some.csv").write_text("bee/01.jpg,sting\nant/03.jpg, crawl\n")
    source = data.file_list(photos / "some.csv")
    assert source.class_names == ("crawl", "sting") and source.labels.tolist() == [1, 0]
    paths = [photos / "bee/01.jpg", photos / "ant/03.jpg"]
    assert names_of(source) == [*map(str, paths)]
    assert [example["image"] for example in read_all(source)] == [p.read_bytes() for p in paths]


def test_text_list_accepts_a_byte_order_mark_integers_and_a_root(photos, tmp_path):
    (tmp_path / "list.txt").write_text("bee/01.jpg 2\nant/03.jpg\t0\n\n", "utf-8-sig")
    source = data.file_list(tmp_path / "list.txt", root=photos)
    assert source.class_names == ("0", "1", "2") and source.labels.tolist() == [2, 0]


def test_rejects_other_encodings(photos):
    (photos / "list.csv").write_text("ant/00.jpg,Bär\n", "latin-1")
    with pytest.raises(ValueError, match="UTF-8.*byte 0xe4 in position 12"):
        data.file_list(photos / "list.csv")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "list is empty"),
        ("\na.jpg\n", {}, "a file and a label.*line 2"),
        ("ant/00.jpg a\nant/99.jpg b\n", {}, "1 of 2 .* missing.*ant/99"),
        ("ant/00.jpg a\n", {"class_names": ["b"]}, "among the 1 .*'a'"),
        ("ant/00.jpg 7\n", {"class_names": ["a", "b"]}, "from 7 to 7"),
        ("ant/00.jpg 10000000000000000000000\n", {}, "Labels must be below 1,000,000"),
        ("ant/00.jpg a\nant/00.jpg b\n", {}, "several labels .*ant/00.jpg"),
    ],
)
def test_rejects_unusable_lists(content, options, message, photos):
    path = photos / "list.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        data.file_list(path, **options)


def test_rejects_mixed_integer_and_name_labels(photos):
    (photos / "labels.csv").write_text("ant/00.jpg,10\nant/01.jpg,-1\nant/02.jpg,2\n")
    with pytest.raises(ValueError, match="all integers or .*: '-1' in line 2"):
        data.file_list(photos / "labels.csv")


def test_labels_that_are_class_names_are_not_indices(photos):
    names = ("1", "2", "3")
    train = {"ant/00": 1, "ant/01": 2, "ant/02": 3}
    fields = _splits(photos, train, {"bee/00": 1, "bee/01": 2})
    train_source, test_source = data.load("list", **fields, class_names=names)
    assert train_source.labels.tolist() == [0, 1, 2] and test_source.labels.tolist() == [0, 1]
    (photos / "train.csv").write_text("ant/00.jpg,0\n")
    with pytest.raises(ValueError, match=r"among the 3 classes.*\['0'\]"):
        data.load("list", **fields, class_names=names)


def test_test_list_has_the_classes_of_the_training_list(photos):
    fields = _splits(photos, {"ant/00": "x", "ant/01": "y"}, {"bee/00": "y"})
    _, test = data.load("list", **fields)
    assert test.class_names == ("x", "y") and test.labels.tolist() == [1]


def test_common_images_of_lists_in_two_folders_are_refused(photos):
    lists = []
    for name in ("first", "second"):
        (photos / name).mkdir()
        (photos / name / "list.csv").write_text("../ant/00.jpg,a\n../bee/00.jpg,b\n")
        lists.append(str(photos / name / "list.csv"))
    with pytest.raises(ValueError, match="no common examples"):
        data.load("list", train_split=lists[0], test_split=lists[1])


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({"ant/00": 1, "ant/01": 2}, {"bee/00": 1}, r"start at 0.*no examples of \['0'\]"),
        ({"ant/00": "ant", "bee/00": "bee"}, {"ant/01": 1}, r"among the 2 classes.*\['1'\]"),
    ],
)
def test_rejects_integer_labels_without_a_class(train, test, message, photos):
    with pytest.raises(ValueError, match=message):
        data.load("list", **_splits(photos, train, test))
