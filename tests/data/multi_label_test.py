"""Images with any number of classes: tables, arrays, TFRecords, splits and metrics."""

import types

import numpy as np
import pytest
import tensorflow as tf
from ml_collections import ConfigDict
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score

import keras_vit
from keras_vit import data, evaluation
from keras_vit.data.sources.division import Division
from keras_vit.data.targets import TARGETS
from keras_vit.evaluation import collecting
from keras_vit.models.any_model import set_logits_activation

from ..shared import SIZES

ROWS = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]], bool)
NAMES = ("cat", "dog", "indoor")
COLUMNS = "id,age,cat,dog,indoor\np0,3,1,0,1\np1,5,0,0,0\np2,4,0,1,0\np3,9,1,1,1\n"
WORDS = "id,tags,age\np0,cat;indoor,1\np1,,0\np2,dog,1\np3,indoor; dog;cat,1\n"


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    for i in range(4):
        Image.new("RGB", (8, 8)).save(folder / f"p{i}.jpg")
    return folder


def _load(folder, text, **options):
    path = folder.parent / "train.csv"
    path.write_text(text)
    return data.file_list(path, root=str(folder), **options)


def _targets(source):
    target = TARGETS["classes"](source)
    rows, weights, _ = zip(*(target.decode(source.read(i)) for i in range(source.num_examples)))
    return np.array(rows), np.array(weights)


def _arrays(rows=ROWS, names=NAMES):
    return data.arrays(np.zeros([len(rows), 4, 4, 3], np.uint8), rows, names)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (COLUMNS, {}),
        (COLUMNS.replace("1,0,1", "1.0,0.0,1.0"), {"class_names": NAMES}),
        (WORDS, {"label_column": "tags", "label_separator": ";"}),
    ],
)
def test_tables_and_arrays_give_the_same_targets(photos, text, options):
    for source in (_load(photos, text, **options), _arrays(ROWS.astype(int))):
        assert source.class_names == NAMES
        np.testing.assert_array_equal(source.labels, ROWS)
        rows, weights = _targets(source)
        np.testing.assert_array_equal(rows, ROWS)
        np.testing.assert_array_equal(weights, 1)  # an image without a class is a negative example
        assert TARGETS["classes"](source).summary() == "3 classes (cat 2, dog 2, indoor 2)"


def test_given_classes_select_columns_in_their_order(photos, caplog):
    assert _load(photos, COLUMNS).class_names == NAMES
    assert "3 columns of zeros and ones are classes: cat, dog, indoor" in caplog.text
    source = _load(photos, COLUMNS, class_names=("indoor", "cat"))
    np.testing.assert_array_equal(source.labels, ROWS[:, [2, 0]])


def test_a_label_column_wins_over_columns_of_zeros_and_ones(photos):
    source = _load(photos, "id,label,a,b\np0,cat,0,1\np1,dog,1,1\n")
    assert source.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (COLUMNS, {"class_names": ("cat", "age")}, "must have zeros and ones"),
        ("id,a,b\np0,1\n", {"class_names": ("a", "b")}, "must have zeros and ones"),
        (WORDS, {"label_column": "tags", "label_separator": ";", "class_names": ("cat",)}, "among"),
        (COLUMNS, {"class_names": (*NAMES, "bird")}, "Each class must have a column"),
        ("id,a,a\np0,1,0\n", {}, "different names"),
        ("id,tags\n,cat\n", {"file_column": "id", "label_separator": ";"}, "a file and a label"),
    ],
)
def test_unclear_tables_are_refused(photos, text, options, message):
    with pytest.raises(ValueError, match=message):
        _load(photos, text, **options)


@pytest.mark.parametrize("odd", ["", "-1", "nan"])
def test_columns_with_unknown_cells_are_not_left_out(photos, odd):
    text = COLUMNS.replace("p1,5,0,0,0", f"p1,5,0,0,{odd}")
    with pytest.raises(ValueError, match="column 'indoor' in line 3.*1 such rows"):
        _load(photos, text)
    assert _load(photos, text, class_names=("cat", "dog")).class_names == ("cat", "dog")


def test_columns_of_words_and_one_column_hold_classes(photos):
    words = COLUMNS.replace(",1", ",True").replace(",0", ",False")
    np.testing.assert_array_equal(_load(photos, words).labels, ROWS)
    source = _load(photos, "id,cat\np0,1\np1,0\n", class_names=("cat",))
    assert source.multi_label and source.labels.tolist() == [[True], [False]]


def test_the_column_of_groups_is_no_class(photos):
    text = COLUMNS.replace("age", "patient").replace("p0,3", "p0,0").replace("p1,5", "p1,0")
    text = text.replace("p2,4", "p2,1").replace("p3,9", "p3,1")
    parts = [
        _load(photos, text, split=split, division=Division(groups="patient"))
        for split in ("train", "test")
    ]
    assert parts[0].class_names == NAMES and [part.num_examples for part in parts] == [2, 2]


def test_a_separator_that_separates_nothing_is_logged(photos, caplog):
    _load(photos, WORDS, label_column="tags", label_separator="|")
    assert "no image has several classes separated by '|'" in caplog.text


@pytest.mark.parametrize("rows", [ROWS[:, :2], ROWS * 2, ROWS[:3]])
def test_other_rows_are_refused(rows):
    with pytest.raises(ValueError, match="`labels`"):
        data.arrays(np.zeros([4, 4, 4, 3], np.uint8), np.asarray(rows, int), NAMES)


def test_lists_are_divided_without_their_classes(photos):
    parts = [
        _load(photos, COLUMNS, split=split, division=Division(test_share=0.25))
        for split in ("train", "test")
    ]
    assert [part.num_examples for part in parts] == [3, 1]
    rows = np.concatenate([part.labels for part in parts])
    assert sorted(rows.tolist()) == sorted(ROWS.tolist())


def _write_records(path, rows):
    image = tf.io.encode_png(np.zeros([4, 4, 3], np.uint8)).numpy()
    with tf.io.TFRecordWriter(path) as writer:
        for row in rows:
            features = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                "image/class/label": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=np.asarray(row, int))
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def test_records_of_zeros_and_ones_are_refused(tmp_path):
    path = str(tmp_path / "train.tfrecord")
    _write_records(path, ROWS)
    with pytest.raises(ValueError, match="different class numbers, not of zeros and ones"):
        data.tfrecords(path, NAMES, multi_label=True)


def test_records_hold_the_numbers_of_all_classes(tmp_path):
    path = str(tmp_path / "train.tfrecord")
    _write_records(path, [np.flatnonzero(row) + 1 for row in ROWS])
    with pytest.raises(ValueError, match="no 'labels' in the first 4 records"):
        data.tfrecords(path, NAMES, label_key="labels", multi_label=True)
    source = data.tfrecords(path, NAMES, label_offset=1, multi_label=True)
    with pytest.raises(ValueError, match="loss=sigmoid"):
        TARGETS["classes"](source, one_label=True)
    rows, weights = _targets(source)
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(weights, 1)
    with pytest.raises(ValueError, match="multi_label"):
        data.tfrecords(path, NAMES, label_offset=1)
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        data.tfrecords(path, NAMES[:2], label_offset=1, multi_label=True)


def test_softmax_and_balanced_sampling_are_refused():
    with pytest.raises(ValueError, match="loss=sigmoid"):
        TARGETS["classes"](_arrays(), one_label=True)
    options = ConfigDict({"label_smoothing": 0.0, "class_weights": "", "sampling": "balanced"})
    target = TARGETS["classes"](_arrays(), options)
    with pytest.raises(ValueError, match="any number of classes"):
        target.check_splits(target)


def test_classes_without_examples_are_found():
    empty = TARGETS["classes"](_arrays(ROWS & [True, False, True]))
    with pytest.raises(ValueError, match="no examples of .'dog'"):
        empty.check_splits(TARGETS["classes"](_arrays()))


def test_evaluators_for_one_label_refuse():
    with pytest.raises(ValueError, match="requires one label"):
        collecting.check_one_label(types.SimpleNamespace(test=_arrays()))


def test_pictures_show_images_with_a_class():
    inputs = types.SimpleNamespace(test=_arrays(np.repeat(ROWS[1:3], [30, 2], axis=0)))
    assert collecting.sample_indices(inputs, 4).tolist() == [30, 31]


@pytest.mark.parametrize("activation", ["linear", "sigmoid"])
def test_metrics(monkeypatch, activation):
    generator = np.random.default_rng(0)
    right = generator.random([40, 3]) < [0.5, 0.2, 0.0]
    logits = generator.normal(size=[40, 3]) + right - 1
    probabilities = 1 / (1 + np.exp(-logits))
    inputs = types.SimpleNamespace(test=types.SimpleNamespace(class_names=NAMES))
    arrays = {
        "outputs": np.append(logits if activation == "linear" else probabilities, [[9, 9, 9]], 0),
        "labels": np.append(right, [[0, 0, 1]], 0).astype("float32"),
        "weights": np.append(np.ones(40), 0),  # the last example is unreadable
    }
    monkeypatch.setattr(evaluation.multi_label, "collect", lambda *_: arrays)
    model = _classifier(activation, "sigmoid")
    metrics = evaluation.get(["multi_label:0.31"])["multi_label:0.31"].evaluate(model, inputs)
    each = [average_precision_score(right[:, i], logits[:, i]) for i in range(2)]
    f1 = lambda t: np.mean([f1_score(right[:, i], probabilities[:, i] >= t) for i in range(2)])  # noqa: E731
    best = max(range(1, 100), key=lambda percent: f1(percent / 100)) / 100
    expected = {
        "mean_average_precision": np.mean(each),
        "macro_f1": f1(0.5),
        "best_macro_f1": f1(best),
        "best_threshold": best,
        "macro_f1_at_0.31": f1(0.31),
        "average_precision_cat": each[0],
        "average_precision_dog": each[1],
    }
    assert metrics == pytest.approx(expected)


def _classifier(activation, of_logits="softmax"):
    model = keras_vit.VisionTransformer(
        **SIZES, input_shape=(4, 4, 3), classes=3, classifier_activation=activation
    )
    set_logits_activation(model, of_logits)
    return model


@pytest.mark.parametrize("activation", ["linear", "softmax"])
def test_metrics_need_independent_probabilities(activation):
    evaluator = evaluation.get(["multi_label"])["multi_label"]
    inputs = types.SimpleNamespace(test=_arrays())
    with pytest.raises(ValueError, match="independent"):
        evaluator.check(_classifier(activation), inputs)


@pytest.mark.parametrize("name", ["multi_label:0.0", "multi_label:1.5", "multi_label:0.3@photos"])
def test_other_thresholds_are_refused(name):
    with pytest.raises(ValueError):
        evaluation.get([name])[name].check(_classifier("sigmoid"))
