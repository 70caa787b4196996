"""Tests of lists of image files with labels: files, encodings, class names and splits.

`tables_test.py` tests the columns of lists with headers.
"""

import re

import pytest

from keras_vit import data

from .helpers import names_of, read_all

# Two images with German class names.
LINES = "bee/01.jpg,Bär\nant/03.jpg,Ameise\n"


@pytest.mark.parametrize("header", ["", "file,label\n"], ids=["no header", "header"])
def test_csv_list_names_files_and_classes(header, photos):
    path = photos / "some.csv"
    path.write_text(header + "bee/01.jpg,sting\nant/03.jpg, crawl\n")
    source = data.file_list(path)
    assert source.class_names == ("crawl", "sting") and source.labels.tolist() == [1, 0]
    assert names_of(source) == [str(photos / "bee" / "01.jpg"), str(photos / "ant" / "03.jpg")]
    assert read_all(source)[1]["image"] == (photos / "ant" / "03.jpg").read_bytes()


def test_text_list_accepts_integer_labels_and_a_root(photos, tmp_path):
    (tmp_path / "list.txt").write_text("bee/01.jpg 2\nant/03.jpg\t0\n\n")
    source = data.file_list(tmp_path / "list.txt", root=photos)
    assert source.class_names == ("0", "1", "2") and source.labels.tolist() == [2, 0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_byte_order_mark_is_accepted(encoding, photos):
    (photos / "list.csv").write_bytes(("file,label\n" + LINES).encode(encoding))
    source = data.file_list(photos / "list.csv")
    assert source.class_names == ("Ameise", "Bär") and source.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("latin-1", "UTF-8.*byte 0xe4 in position 12.*list.csv"),
        ("utf-16", "UTF-8.*byte 0xff in position 0"),
    ],
)
def test_rejects_other_encodings(encoding, message, photos):
    path = photos / "list.csv"
    path.write_bytes(LINES.encode(encoding))
    with pytest.raises(ValueError, match=message):
        data.file_list(path)
    (photos / "good.csv").write_text("ant/00.jpg,a\n")
    with pytest.raises(ValueError, match=message):
        data.load_split("list", str(photos / "good.csv"), class_names=str(path))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "list is empty"),
        ("file,label\n\na.jpg\n", {}, "a file and a label.*a.jpg.*line 3"),
        ("photos/ant/00.jpg,a\nphotos/x,b\n", {}, "1 of 2 .* missing.*x"),
        ("photos/ant/99,a\n", {}, "1 of 1 .* missing.*ant/99"),
        ("photos/ant/00.jpg,a\n", {"class_names": ["b"]}, "among the 1 .*'a'"),
        ("photos/ant/00.jpg,7\n", {"class_names": ["a", "b"]}, "from 7 to 7"),
        ("photos/ant/00.jpg,10000000000000000000000\n", {}, "Labels must be below 1,000,000"),
        (
            "photos/ant/00.jpg,a\nphotos/ant/01.jpg,b\nphotos/ant/00.jpg,a\nphotos/ant/00.jpg,b\n",
            {},
            r"several labels for \['.*ant/00.jpg'\] in",
        ),
    ],
)
def test_rejects_unusable_lists(content, options, message, photos):
    path = photos.parent / "list.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        data.file_list(path, **options)


def test_rejects_missing_lists(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        data.file_list(tmp_path / "nowhere.csv")


@pytest.mark.parametrize("label", ["-1", "nan", "0.0", "?"])
def test_rejects_mixed_integer_and_name_labels(label, photos):
    path = photos / "labels.csv"
    path.write_text(f"file,label\nant/00.jpg,10\nant/01.jpg,{label}\nant/02.jpg,2\n")
    with pytest.raises(ValueError, match=f"all integers or .*: '{re.escape(label)}' in line 3"):
        data.file_list(path)


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


def test_labels_that_are_class_names_are_not_indices(photos):
    (photos / "names").write_text("1\n2\n3\n")
    names = {"class_names": str(photos / "names")}
    test = {"bee/00": 1, "bee/01": 2}
    fields = _splits(photos, {"ant/00": 1, "ant/01": 2, "ant/02": 3}, test)
    train_source, test_source = data.load("list", **fields, **names)
    assert train_source.labels.tolist() == [0, 1, 2] and test_source.labels.tolist() == [0, 1]
    fields = _splits(photos, {"ant/00": 0, "ant/01": 1, "ant/02": 2}, test)
    with pytest.raises(ValueError, match=r"among the 3 classes. Received: \['0'\]"):
        data.load("list", **fields, **names)
    train_source, test_source = data.load("list", **fields)
    assert train_source.labels.tolist() == [0, 1, 2] and test_source.labels.tolist() == [1, 2]


def test_test_list_has_the_classes_of_the_training_list(photos):
    fields = _splits(photos, {"ant/00": "x", "ant/01": "y"}, {"bee/00": "y"})
    _, test = data.load("list", **fields)
    assert test.class_names == ("x", "y") and test.labels.tolist() == [1]


def test_integer_labels_start_at_0(photos):
    fields = _splits(photos, {"ant/00": 1, "ant/01": 2}, {"bee/00": 1})
    with pytest.raises(ValueError, match=r"Integer labels start at 0.*no examples of \['0'\]"):
        data.load("list", **fields)


def test_integer_labels_do_not_index_training_class_names(photos):
    fields = _splits(photos, {"ant/00": "ant", "bee/00": "bee"}, {"ant/01": 1})
    with pytest.raises(ValueError, match=r"Labels must be among the 2 classes. Received: \['1'\]"):
        data.load("list", **fields)
