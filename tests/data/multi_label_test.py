"""Tests of images with any number of classes: tables, arrays, TFRecords, splits and metrics."""

import types

import numpy as np
import pytest
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
from .helpers import jpeg, read_all, write_records

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


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with the images p0.jpg to p3.jpg."""
    folder = tmp_path / "train"
    folder.mkdir()
    for i in range(4):
        Image.new("RGB", (8, 8)).save(folder / f"p{i}.jpg")
    return folder


def _load_table(folder, text, **options):
    path = folder.parent / "train.csv"
    path.write_text(text)
    return data.file_list(path, root=str(folder), **options)


def _assert_targets_are_labels(source):
    target = TARGETS["classes"](source)
    targets, weights, _ = zip(*(target.decode(example) for example in read_all(source)))
    np.testing.assert_array_equal(targets, LABELS)
    # An image without a class is a negative example.
    np.testing.assert_array_equal(weights, 1)


def _arrays(labels=LABELS, names=NAMES):
    return data.arrays(np.zeros([len(labels), 4, 4, 3], np.uint8), labels, names)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (COLUMNS, {}),
        (COLUMNS.replace("1,0,1", "1.0,0.0,1.0"), {"class_names": NAMES}),
        (COLUMNS.replace(",1", ",True").replace(",0", ",False"), {}),
        (TAGS, {"label_column": "tags", "label_separator": ";"}),
    ],
)
def test_tables_and_arrays_give_the_same_targets(folder, text, options):
    for source in (_load_table(folder, text, **options), _arrays(LABELS.astype(int))):
        assert source.class_names == NAMES
        np.testing.assert_array_equal(source.labels, LABELS)
        _assert_targets_are_labels(source)
        assert TARGETS["classes"](source).summary() == "3 classes (cat 2, dog 2, indoor 2)"


def test_given_classes_select_columns_in_their_order(folder, caplog):
    assert _load_table(folder, COLUMNS).class_names == NAMES
    assert "3 columns of zeros and ones are classes: cat, dog, indoor" in caplog.text
    source = _load_table(folder, COLUMNS, class_names=("indoor", "cat"))
    np.testing.assert_array_equal(source.labels, LABELS[:, [2, 0]])


def test_a_label_column_wins_over_columns_of_zeros_and_ones(folder):
    source = _load_table(folder, "id,label,a,b\np0,cat,0,1\np1,dog,1,1\n")
    assert source.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (COLUMNS, {"class_names": ("cat", "age")}, "must have zeros and ones"),
        (TAGS, {"label_column": "tags", "label_separator": ";", "class_names": ("cat",)}, "among"),
        (COLUMNS, {"class_names": (*NAMES, "bird")}, "Each class must have a column"),
        ("id,a,a\np0,1,0\n", {}, "different names"),
        ("id,tags\n,cat\n", {"file_column": "id", "label_separator": ";"}, "a file and a label"),
    ],
)
def test_unclear_tables_are_refused(folder, text, options, message):
    with pytest.raises(ValueError, match=message):
        _load_table(folder, text, **options)


@pytest.mark.parametrize("unknown", ["", "-1", "nan"])
def test_columns_with_unknown_cells_are_refused_or_left_out_on_request(folder, unknown):
    text = COLUMNS.replace("p1,5,0,0,0", f"p1,5,0,0,{unknown}")
    with pytest.raises(ValueError, match="column 'indoor' in line 3"):
        _load_table(folder, text)
    assert _load_table(folder, text, class_names=("cat", "dog")).class_names == ("cat", "dog")


def test_a_column_of_depths_is_no_label(folder):
    assert _load_table(folder, COLUMNS.replace("age", "depth")).class_names == NAMES


def test_a_single_column_can_be_a_class(folder):
    source = _load_table(folder, "id,cat\np0,1\np1,0\n", class_names=("cat",))
    assert source.multi_label and source.labels.tolist() == [[True], [False]]


def test_the_column_of_groups_is_no_class(folder):
    text = "id,patient,cat,dog,indoor\np0,0,1,0,1\np1,0,0,0,0\np2,1,0,1,0\np3,1,1,1,1\n"
    train, test = (
        _load_table(folder, text, split=split, division=Division(groups="patient"))
        for split in ("train", "test")
    )
    assert train.class_names == NAMES and train.num_examples == test.num_examples == 2


def test_a_separator_that_separates_nothing_is_logged(folder, caplog):
    _load_table(folder, TAGS, label_column="tags", label_separator="|")
    assert "no image has several classes separated by '|'" in caplog.text


@pytest.mark.parametrize(
    "labels", [LABELS[:, :2], 2 * LABELS, LABELS[:3]], ids=["classes", "values", "images"]
)
def test_rejects_other_label_arrays(labels):
    with pytest.raises(ValueError, match="`labels`"):
        data.arrays(np.zeros([4, 4, 4, 3], np.uint8), labels.astype(int), NAMES)


def test_lists_are_divided_without_their_classes(folder):
    train, test = (
        _load_table(folder, COLUMNS, split=split, division=Division(test_share=0.25))
        for split in ("train", "test")
    )
    assert (train.num_examples, test.num_examples) == (3, 1)
    labels = np.concatenate([train.labels, test.labels])
    assert sorted(labels.tolist()) == sorted(LABELS.tolist())


def _records(folder, labels, names=NAMES, **options):
    """Loads TFRecords with one or several labels each."""
    path = str(folder / "train.tfrecord")
    write_records(path, map(jpeg, range(len(labels))), labels)
    return data.tfrecords(path, names, multi_label=True, **options)


@pytest.mark.parametrize(
    ("labels", "classes"), [(LABELS, 3), ([[1, 0], [0, 1]], 2), ([[1, 0], [1, 0]], 2)]
)
def test_records_of_zeros_and_ones_are_refused(labels, classes, tmp_path):
    with pytest.raises(ValueError, match="not of zeros and ones"):
        _records(tmp_path, labels, NAMES[:classes])


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([[1, 0], [0, 1], [0]], 2), ([[0, 1], [0, 1]], 2), ([[1, 0], [0, 1]], 3)],
)
def test_records_with_both_classes_are_accepted(labels, classes, tmp_path):
    assert _records(tmp_path, labels, NAMES[:classes]).num_examples == len(labels)


def test_records_hold_the_numbers_of_all_classes(tmp_path):
    labels = [np.flatnonzero(row) + 1 for row in LABELS]
    source = _records(tmp_path, labels, label_offset=1)
    _assert_targets_are_labels(source)
    with pytest.raises(ValueError, match="loss=sigmoid"):
        TARGETS["classes"](source, one_label=True)
    path = str(tmp_path / "train.tfrecord")
    with pytest.raises(ValueError, match="no 'labels' in the first"):
        data.tfrecords(path, NAMES, label_key="labels", multi_label=True)
    with pytest.raises(ValueError, match="multi_label"):
        data.tfrecords(path, NAMES, label_offset=1)
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        data.tfrecords(path, NAMES[:2], label_offset=1, multi_label=True)


def test_balanced_sampling_is_refused():
    options = ConfigDict({"label_smoothing": 0.0, "class_weights": "", "sampling": "balanced"})
    target = TARGETS["classes"](_arrays(), options)
    with pytest.raises(ValueError, match="any number of classes"):
        target.check_splits(target)


def test_classes_without_examples_are_found():
    train = TARGETS["classes"](_arrays(LABELS & [True, False, True]))
    with pytest.raises(ValueError, match="no examples of .'dog'"):
        train.check_splits(TARGETS["classes"](_arrays()))


def test_evaluators_for_one_label_refuse_several():
    with pytest.raises(ValueError, match="requires one label"):
        collecting.check_one_label(types.SimpleNamespace(test=_arrays()))


def test_sample_indices_are_those_of_images_with_a_class():
    inputs = types.SimpleNamespace(test=_arrays(np.repeat(LABELS[1:3], [30, 2], axis=0)))
    assert collecting.sample_indices(inputs, 4).tolist() == [30, 31]


@pytest.mark.parametrize("activation", ["linear", "sigmoid"])
def test_metrics_match_scikit_learn(monkeypatch, activation):
    random = np.random.default_rng(0)
    # The third class has no examples, so all means leave it out.
    labels = random.random([40, 3]) < [0.5, 0.2, 0.0]
    logits = random.normal(size=[40, 3]) + labels - 1
    probabilities = 1 / (1 + np.exp(-logits))
    inputs = types.SimpleNamespace(test=types.SimpleNamespace(class_names=NAMES))
    outputs = logits if activation == "linear" else probabilities
    # The last example cannot be read.
    arrays = {
        "outputs": np.append(outputs, [[9, 9, 9]], 0),
        "labels": np.append(labels, [[0, 0, 1]], 0).astype("float32"),
        "weights": np.append(np.ones(40), 0),
    }
    monkeypatch.setattr(evaluation.multi_label, "collect", lambda *_: arrays)
    model = _classifier(activation, "sigmoid")
    metrics = evaluation.get(["multi_label:0.31"])["multi_label:0.31"].evaluate(model, inputs)

    def macro_f1(threshold):
        return f1_score(labels[:, :2], probabilities[:, :2] >= threshold, average="macro")

    cat, dog = (average_precision_score(labels[:, i], logits[:, i]) for i in range(2))
    best = max(np.arange(1, 100) / 100, key=macro_f1)
    expected = {
        "mean_average_precision": (cat + dog) / 2,
        "macro_f1": macro_f1(0.5),
        "best_macro_f1": macro_f1(best),
        "best_threshold": best,
        "macro_f1_at_0.31": macro_f1(0.31),
        "average_precision_cat": cat,
        "average_precision_dog": dog,
    }
    assert metrics == pytest.approx(expected)


def _classifier(activation, logits_activation="softmax"):
    """Returns a model with an activation, or with logits to which an activation must be applied."""
    model = keras_vit.VisionTransformer(
        **SIZES, input_shape=(4, 4, 3), classes=3, classifier_activation=activation
    )
    set_logits_activation(model, logits_activation)
    return model


@pytest.mark.parametrize("activation", ["linear", "softmax"])
def test_metrics_need_independent_probabilities(activation):
    evaluator = evaluation.get(["multi_label"])["multi_label"]
    inputs = types.SimpleNamespace(test=_arrays())
    with pytest.raises(ValueError, match="independent"):
        evaluator.check(_classifier(activation), inputs)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("multi_label:0.0", "must be between 0 and 1"),
        ("multi_label:1.5", "must be between 0 and 1"),
        ("multi_label:0.1.5", "must be between 0 and 1"),
        ("multi_label:0.3@photos", "cannot load its dataset"),
    ],
)
def test_other_thresholds_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        evaluation.get([name])[name].check(_classifier("sigmoid"))
