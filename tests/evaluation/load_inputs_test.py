"""Tests of `load_inputs`: the preprocessing of the model, and the classes and splits of folders."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import data, evaluation
from keras_vit.evaluation.loading import load_run_inputs

from ..data.helpers import names_of, png
from ..shared import SIZES
from .colors import COLORS, mean_color_model, small_vit

DIGITS = tuple("0123456789")


def first_images(inputs):
    images, *_ = next(iter(inputs.eval_batches()))
    return np.asarray(images)


def load_digits(model):
    return evaluation.load_inputs(model, "digits", splits=("test",))


def write_folder(path, counts, names=("cat", "dog", "owl")):
    """Writes images of the class's color to subfolders. `counts` maps a subfolder to their number.

    The class is the last part of the subfolder, and `names` are the classes in the order of
    `COLORS`.
    """
    for subfolder, count in counts.items():
        folder = path / subfolder
        folder.mkdir(parents=True)
        color = COLORS[names.index(folder.name)]
        for i in range(count):
            (folder / f"{i}.png").write_bytes(png(np.full((8, 8, 3), color + i, "uint8")))
    return str(path)


@pytest.fixture
def photos(tmp_path):
    """Returns a folder without splits, in which the colors are those of owls, cats and dogs."""
    return write_folder(tmp_path, {"owl": 12, "cat": 12, "dog": 12}, ("owl", "cat", "dog"))


def test_images_have_the_preprocessing_of_the_model():
    preprocessing = keras_vit.Preprocessing(mean=[51.0] * 3, std=[51.0] * 3)
    model = small_vit(input_shape=(16, 16, 3), classes=10, preprocessing=preprocessing)
    images = first_images(load_digits(model))
    assert images.shape == (64, 16, 16, 3)
    np.testing.assert_allclose([images.min(), images.max()], [-1, 4], atol=1e-6)


def test_crop_fraction_matches_a_crop_of_a_larger_image():
    preprocessing = keras_vit.Preprocessing(crop_fraction=0.5)
    model = small_vit(input_shape=(12, 12, 3), classes=10, preprocessing=preprocessing)
    inputs = load_digits(model)
    assert inputs.model_preprocessing().crop_fraction == 0.5
    larger_model = small_vit(input_shape=(24, 24, 3), classes=10)
    larger_images = first_images(load_digits(larger_model))
    np.testing.assert_allclose(first_images(inputs), larger_images[:, 6:-6, 6:-6], atol=1e-6)


def test_accepts_sequential_models():
    vit = small_vit(classes=10)
    for model in (keras.Sequential([keras.Input((8, 8, 3)), vit]), keras.Sequential([vit])):
        assert load_digits(model).image_shape == (8, 8, 3)


def test_only_evaluators_of_the_classes_reject_another_class_order():
    model = small_vit(classes=10)
    inputs = evaluation.load_inputs(model, "digits", class_names=DIGITS)
    assert inputs.test.num_examples == 360
    with pytest.raises(ValueError, match="order of the model's outputs"):
        evaluation.evaluate(model, ["top1:digits"], class_names=DIGITS[::-1])
    evaluator = evaluation.get(["knn:digits"], class_names=DIGITS[::-1])["knn:digits"]
    evaluator.check(model)


def test_folder_splits_share_classes(tmp_path):
    counts = {"train/cat": 3, "train/dog": 3, "train/owl": 3, "test/cat": 2, "test/owl": 2}
    photos = write_folder(tmp_path, counts)
    inputs = evaluation.load_inputs(mean_color_model(), "folder", photos)
    assert inputs.test.class_names == ("cat", "dog", "owl")
    assert inputs.test.labels.tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize(
    ("names_of_model", "expected", "labels"),
    [
        (("dog", "owl", "cat"), ("dog", "owl", "cat"), [1, 1, 2, 2]),
        # The class "owl" of the folder is not one of the model's.
        (("cat", "dog"), ("cat", "owl"), [0, 0, 1, 1]),
    ],
)
def test_folder_classes_get_the_order_of_the_model(names_of_model, expected, labels, tmp_path):
    photos = write_folder(tmp_path, {"test/cat": 2, "test/owl": 2})
    inputs = evaluation.load_inputs(
        mean_color_model(), "folder", photos, ("test",), class_names=names_of_model
    )
    assert inputs.test.class_names == expected
    # The images are in the order of their classes.
    assert sorted(inputs.test.labels.tolist()) == labels


def test_folder_evaluator_uses_the_class_order_of_the_model(photos):
    name = f"top1:folder@{photos}"
    metrics = evaluation.evaluate(mean_color_model(), [name], class_names=("owl", "cat", "dog"))
    assert metrics[f"{name}/accuracy"] == 1


def test_classes_of_another_folder_are_compared_with_those_of_the_run(tmp_path):
    model = mean_color_model()
    own = write_folder(tmp_path / "own", {"cat": 3, "dog": 3, "owl": 3})
    inputs = evaluation.load_inputs(model, "folder", own, ("",))
    names = ("ape", "cat", "dog")
    other = write_folder(tmp_path / "other", dict.fromkeys(names, 3), names)
    with pytest.raises(ValueError, match="Received: .'cat', 'dog'. at other positions"):
        evaluation.evaluate(model, [f"top1:folder@{other}"], inputs)


@pytest.mark.parametrize(("path", "split"), [("{photos}/", "test"), ("/elsewhere", "")])
def test_folder_of_the_run_is_divided_as_in_the_run(path, split, photos):
    division = {"test_share": 0.25, "split_seed": 7}
    run = {"name": "folder", "path": path.format(photos=photos), **division}
    name = f"top1:folder@{photos}"
    evaluator = evaluation.get([name], class_names=("owl", "cat", "dog"), run=run)[name]
    source = evaluator._inputs(mean_color_model(), None).test
    expected = data.load_split("folder", split, path=photos, **division)
    assert sorted(names_of(source)) == sorted(names_of(expected))


@pytest.mark.parametrize(("is_own_folder", "options"), [(True, {"fold": "1/3"}), (False, {})])
def test_fold_and_groups_of_the_run_apply_only_to_its_own_folder(is_own_folder, options, photos):
    run = {"name": "folder", "path": photos, "fold": "1/3"}
    if not is_own_folder:
        run |= {"name": "list", "path": "/elsewhere", "groups": "patient"}
    inputs = evaluation.load_inputs(mean_color_model(), "folder", photos, ("test",), run=run)
    expected = data.load_split("folder", "test", path=photos, **options)
    assert names_of(inputs.test) == names_of(expected)


@pytest.mark.parametrize(("run", "warns"), [({"fold": "1/3"}, True), ({}, False)])
def test_copy_of_divided_data_causes_a_warning(run, warns, photos, caplog):
    run = {"name": "folder", "path": "/elsewhere", **run}
    evaluation.load_inputs(mean_color_model(), "folder", photos, ("train", "test"), run=run)
    assert ("may contain training images" in caplog.text) == warns


def test_keys_of_the_run_locate_the_values_of_its_dataset(monkeypatch):
    received = []

    def keyed(split, *, path="", label_key=""):
        received.append(label_key)
        return data.load_split("digits", split)

    monkeypatch.setitem(data.SOURCES, "keyed", keyed)
    for name in ("keyed", "digits"):
        run = {"name": name, "label_key": "species"}
        evaluation.load_inputs(small_vit(classes=10), "keyed", splits=("test",), run=run)
    assert received == ["species", ""]


def test_data_of_a_run_load_without_its_file_of_class_weights():
    run = {"name": "digits", "class_weights": "missing.csv"}
    assert load_run_inputs(small_vit(classes=10), run).test.num_examples == 360


def test_colors_of_the_masks_of_a_run_do_not_apply_to_class_numbers(monkeypatch, tmp_path):
    colors = tmp_path / "colors.txt"
    colors.write_text("0 0 0 sky\n255 0 0 cat\n")
    image = np.zeros((8, 8, 3), "uint8")
    file = png(image)
    mask = np.eye(8, dtype="int64")

    def numbered(split):
        def read(index):
            return {"image": tf.constant(file), "mask": tf.constant(mask)}

        return data.Source(read, 2, ("sky", "cat"), target="masks")

    monkeypatch.setitem(data.SOURCES, "numbered", numbered)
    model = keras_vit.LinearSegmenter(**SIZES, input_shape=image.shape, classes=2)
    run = {"name": "masks", "mask_colors": str(colors)}
    inputs = evaluation.load_inputs(model, "numbered", splits=("test",), run=run)
    _, masks, weights = next(iter(inputs.eval_batches()))
    np.testing.assert_array_equal(masks[0], mask)
    assert weights[0] == 1
