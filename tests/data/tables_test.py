"""Tests of tables of labels: columns, separators and headers."""

import pytest

from keras_vit import data

from .helpers import write_jpegs


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with the images 0.jpg to 3.jpg."""
    write_jpegs(tmp_path / "train", 4)
    return tmp_path / "train"


def _load(folder, text, name="train.csv", **columns):
    path = folder.parent / name
    path.write_text(text)
    return data.file_list(path, root=str(folder), **columns)


def _pairs(source):
    """Returns the file names and class names of all examples."""
    return [
        (source.name_of(i).rpartition("/")[2], source.class_names[source.labels[i]])
        for i in range(source.num_examples)
    ]


CAT_AND_DOG = [("0.jpg", "cat"), ("1.jpg", "dog")]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("image_id,breed\n0.jpg,cat\n1.jpg,dog\n", {}),
        ("id,breed\n0,cat\n1,dog\n", {}),  # as on Kaggle
        ("breed,when,id\ncat,2019,0\ndog,2020,1\n", {"label_column": "breed"}),
        ("label,when,id\ncat,2019,0\ndog,2020,1\n", {}),
        ("id,label,mask\n0,cat,a\n1,dog,b\n", {}),
        ("old,new,breed\n1,0,cat\n0,1,dog\n", {"file_column": "new", "label_column": "breed"}),
        (",image,breed,when\n0,0.jpg,cat,2019\n1,1.jpg,dog,2020\n", {"label_column": "breed"}),
        ('image,"label"\n0.jpg,"cat"\n1.jpg,dog\n', {}),
        ("image,label\n./0.jpg,cat\nold/../1.jpg,dog\n", {}),
        ("0.jpg,cat\n1.jpg,dog\n", {}),
    ],
)
@pytest.mark.parametrize(
    ("mark", "name"), [(",", "train.csv"), (";", "train.csv"), ("\t", "train.tsv")]
)
def test_columns_are_found(folder, text, columns, mark, name):
    table = text.replace(",", mark)
    assert _pairs(_load(folder, table, name, **columns)) == CAT_AND_DOG


def test_guessed_columns_and_separators_are_logged(folder, caplog):
    _load(folder, "id;breed\n0;cat\n1;dog\n")
    assert "files are in the column 'id' and labels in 'breed'" in caplog.text
    assert "separated by ';'" in caplog.text
    caplog.clear()
    _load(folder, "file,breed\n0,cat\n1,dog\n", "named.csv", label_column="breed")
    assert not caplog.text


def test_a_file_named_like_a_header_keeps_the_header(folder):
    (folder / "file.jpg").touch()
    assert _pairs(_load(folder, "file,label\n0.jpg,cat\n1.jpg,dog\n")) == CAT_AND_DOG


def test_an_empty_cell_is_no_file(folder):
    folder.with_suffix(".jpg").touch()  # the name of the folder and .jpg
    assert _pairs(_load(folder, ",image,label\n0,0.jpg,cat\n1,1.jpg,dog\n")) == CAT_AND_DOG


def test_labels_with_leading_zeros_are_names(folder):
    train = _load(folder, "0.jpg,01\n1.jpg,02\n")
    assert train.class_names == ("01", "02")
    numbered = _load(folder, "0.jpg,00\n1.jpg,01\n", class_names=("cat", "dog"))
    assert numbered.labels.tolist() == [0, 1]
    test = _load(folder, "2.jpg,02\n", class_names=train.class_names, only_names=True)
    assert test.labels.tolist() == [1]


def test_a_class_named_like_a_header_is_no_header(folder):
    assert _pairs(_load(folder, "0.jpg,image\n1.jpg,path\n"))[0] == ("0.jpg", "image")


def test_two_files_of_one_name_are_not_guessed(folder):
    (folder / "0.png").touch()
    with pytest.raises(ValueError, match="1 of 2 files are missing"):
        _load(folder, "id,label\n0,cat\n1,dog\n", file_column="id")


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("id,a,b\n0,x,y\n", {}, "`label_column` must be set"),
        ("id,other,label\n0,1,y\n", {}, "`file_column` must be set"),
        ("file,depth,breed\n0,3,cat\n1,4,dog\n", {}, "`label_column` must be set"),
        ("id,label\n0,cat\n", {"file_column": "ids"}, "one of the columns id, label"),
        ("id,id,label\n0,1,cat\n", {"file_column": "id"}, "different names"),
        ("0.jpg,cat,2019\n1.jpg,dog,2020\n", {}, "must have a header"),
        ("id,label\n0,cat\n1,\n", {}, "a file and a label.*line 3"),
        ("id,label\n0,cat,dog\n", {}, "at most 2 columns.*line 2"),
        ("id,tags\n0,cat\n1\n", {"label_separator": ";"}, "a file and a label.*line 3"),
        ('id,label\n0,cat\n1,"cat\ndog"\n', {}, "in one line.*line 4"),
        ("id,label\n", {"file_column": "id"}, "list is empty"),
        ('0.jpg,cat\n1.jpg,"dog\n2.jpg,cat\n3.jpg,"dog"\n', {}, "not closed"),
        ('id,label\n0,"cat\n1,dog"\n', {}, "of several lines"),
        ("0.jpg,cat\n./0.jpg,dog\n", {}, "several labels"),
        ("0.jpg,01\n1.jpg,1\n", {}, "leading zeros"),
    ],
)
def test_rejects_unclear_tables(folder, text, columns, message):
    with pytest.raises(ValueError, match=message):
        _load(folder, text, **columns)


def test_columns_of_a_text_list_are_refused(folder):
    with pytest.raises(ValueError, match="end in .csv or .tsv"):
        _load(folder, "0.jpg cat\n", "train.txt", file_column="id")
