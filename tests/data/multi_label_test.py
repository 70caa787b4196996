"""Tests of images with any number of classes: tables, arrays, TFRecords and splits."""

import numpy as np
import pytest
from ml_collections import ConfigDict

from keras_vit import data
from keras_vit.data.sources.division import Division
from keras_vit.data.targets import TARGETS

from .helpers import flip_bit, jpeg, read_all, write_records

NAMES = ("cat", "dog", "indoor")
# The classes of four images, as an array and as tables of two kinds.
LABELS = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]], bool)
COLUMNS = """id,age,cat,dog,indoor
p0,3,1,0,1
p1,5,0,0,0
p2,4,0,1,0
p3,9,1,1,1
"""
TAGS = """id,tags,age
p0,cat;indoor,1
p1,,0
p2,dog,1
p3,indoor; dog;cat,1
"""
TAG_COLUMN = {"label_column": "tags", "label_separator": ";"}


def _load_table(folder, text, **options):
    """Loads a table of the images p0.jpg to p3.jpg."""
    for number in range(4):
        (folder / f"p{number}.jpg").touch()
    (folder / "train.csv").write_text(text)
    return data.file_list(folder / "train.csv", **options)


def _arrays(labels=LABELS, names=NAMES):
    return data.arrays(np.zeros([4, 4, 4, 3], np.uint8), labels, names)


def _records(folder, labels, names=NAMES, **options):
    """Loads TFRecords with one or several labels each."""
    path = str(folder / "train.tfrecord")
    write_records(path, map(jpeg, range(len(labels))), labels)
    return data.tfrecords(path, names, multi_label=True, **options)


def _assert_targets_are_labels(source):
    target = TARGETS["classes"](source)
    targets, weights, _ = zip(*(target.decode(example) for example in read_all(source)))
    np.testing.assert_array_equal(targets, LABELS)
    # An image without a class is a negative example.
    np.testing.assert_array_equal(weights, 1)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (COLUMNS, {}),
        (COLUMNS.replace("1,0,1", "1.0,0.0,1.0"), {"class_names": NAMES}),
        (COLUMNS.replace(",1", ",True").replace(",0", ",False"), {}),
        (TAGS, TAG_COLUMN),
    ],
    ids=["numbers", "decimals", "Booleans", "tags"],
)
def test_targets_of_tables(tmp_path, text, options):
    source = _load_table(tmp_path, text, **options)
    assert source.class_names == NAMES
    np.testing.assert_array_equal(source.labels, LABELS)
    _assert_targets_are_labels(source)


def test_targets_of_arrays():
    source = _arrays(LABELS.astype(int))
    _assert_targets_are_labels(source)
    assert TARGETS["classes"](source).summary() == "3 classes (cat 2, dog 2, indoor 2)"


@pytest.mark.parametrize(
    "labels", [LABELS[:, :2], 2 * LABELS, LABELS[:3]], ids=["classes", "values", "images"]
)
def test_rejects_other_label_arrays(labels):
    with pytest.raises(ValueError, match="`labels`"):
        _arrays(labels.astype(int))


def test_columns_of_classes_are_logged(tmp_path, caplog):
    _load_table(tmp_path, COLUMNS)
    assert "3 columns of zeros and ones are classes: cat, dog, indoor" in caplog.text


def test_given_classes_select_columns_in_their_order(tmp_path):
    source = _load_table(tmp_path, COLUMNS, class_names=("indoor", "cat"))
    np.testing.assert_array_equal(source.labels, LABELS[:, [2, 0]])


def test_a_label_column_wins_over_columns_of_zeros_and_ones(tmp_path):
    source = _load_table(tmp_path, "id,label,a,b\np0,cat,0,1\np1,dog,1,1\n")
    assert source.labels.tolist() == [0, 1]


def test_a_single_column_can_be_a_class(tmp_path):
    source = _load_table(tmp_path, "id,cat\np0,1\np1,0\n", class_names=("cat",))
    assert source.multi_label and source.labels.tolist() == [[True], [False]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (COLUMNS, {"class_names": ("cat", "age")}, "must have zeros and ones"),
        (TAGS, {**TAG_COLUMN, "class_names": ("cat",)}, "among"),
        (COLUMNS, {"class_names": (*NAMES, "bird")}, "Each class must have a column"),
    ],
)
def test_unclear_tables_are_refused(tmp_path, text, options, message):
    with pytest.raises(ValueError, match=message):
        _load_table(tmp_path, text, **options)


def test_columns_with_unknown_cells_are_refused_or_left_out_on_request(tmp_path):
    text = "id,cat,dog,indoor\np0,1,0,1\np1,0,0,\np2,0,1,-1\np3,1,1,nan\n"
    with pytest.raises(ValueError, match="column 'indoor' in line 3"):
        _load_table(tmp_path, text)
    source = _load_table(tmp_path, text, class_names=("cat", "dog"))
    np.testing.assert_array_equal(source.labels, LABELS[:, :2])


def test_a_separator_that_separates_nothing_is_logged(tmp_path, caplog):
    _load_table(tmp_path, TAGS, label_column="tags", label_separator="|")
    assert "no image has several classes separated by '|'" in caplog.text


def _divided_table(folder, text, **fields):
    """Returns the training and the test split of a table."""
    division = Division(**fields)
    return [
        _load_table(folder, text, split=split, division=division) for split in ("train", "test")
    ]


def test_tables_are_divided_without_their_classes(tmp_path):
    train, test = _divided_table(tmp_path, COLUMNS, test_share=0.25)
    assert (train.num_examples, test.num_examples) == (3, 1)
    labels = np.concatenate([train.labels, test.labels])
    assert sorted(labels.tolist()) == sorted(LABELS.tolist())


def test_the_column_of_groups_is_no_class(tmp_path):
    text = "id,patient,cat,dog\np0,0,1,0\np1,0,0,0\np2,1,0,1\np3,1,1,1\n"
    train, test = _divided_table(tmp_path, text, groups="patient")
    assert train.class_names == ("cat", "dog") and train.num_examples == test.num_examples == 2


@pytest.mark.parametrize(
    ("labels", "classes"), [(LABELS, 3), ([[1, 0], [0, 1]], 2), ([[1, 0], [1, 0]], 2)]
)
def test_records_of_zeros_and_ones_are_refused(labels, classes, tmp_path):
    with pytest.raises(ValueError, match="not of zeros and ones"):
        _records(tmp_path, labels, NAMES[:classes])


def test_records_after_a_damaged_one_are_checked(tmp_path):
    path = tmp_path / "train.tfrecord"
    write_records(str(path), map(jpeg, range(3)), [[0], [1], [1, 1]])
    flip_bit(path, jpeg(0))
    with pytest.raises(ValueError, match="not of zeros and ones"):
        data.tfrecords(str(path), NAMES, multi_label=True)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([[1, 0], [0, 1], [0]], 2), ([[0, 1], [0, 1]], 2), ([[1, 0], [0, 1]], 3)],
)
def test_records_with_both_classes_are_accepted(labels, classes, tmp_path):
    assert _records(tmp_path, labels, NAMES[:classes]).num_examples == len(labels)


def test_records_hold_the_numbers_of_all_classes(tmp_path):
    labels = [np.flatnonzero(row) + 1 for row in LABELS]
    _assert_targets_are_labels(_records(tmp_path, labels, label_offset=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_key": "labels"}, "no 'labels' in the first"),
        ({"multi_label": False}, "multi_label"),
        ({"class_names": NAMES[:2]}, "must be from 0 to 1"),
    ],
)
def test_records_of_lists_need_fitting_fields(options, message, tmp_path):
    _records(tmp_path, [[0, 2]])
    fields = {"class_names": NAMES, "multi_label": True, **options}
    with pytest.raises(ValueError, match=message):
        data.tfrecords(str(tmp_path / "train.tfrecord"), **fields)


def test_the_softmax_loss_refuses_any_number_of_classes():
    with pytest.raises(ValueError, match="loss=sigmoid"):
        TARGETS["classes"](_arrays(), one_label=True)


def test_balanced_sampling_is_refused():
    options = ConfigDict({"label_smoothing": 0.0, "class_weights": "", "sampling": "balanced"})
    target = TARGETS["classes"](_arrays(), options)
    with pytest.raises(ValueError, match="any number of classes"):
        target.check_splits(target)


def test_classes_without_examples_are_found():
    train = TARGETS["classes"](_arrays(LABELS & [True, False, True]))
    with pytest.raises(ValueError, match="no examples of .'dog'"):
        train.check_splits(TARGETS["classes"](_arrays()))
