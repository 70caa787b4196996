"""Tests of the evaluator `real` with a file of ImageNet's reassessed labels."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_vit import evaluation
from keras_vit.evaluation import accuracy

from ..data.helpers import png
from .colors import COLORS, color_inputs, mean_color_model, small_vit


def imagenet_model():
    """Returns `mean_color_model` with zero as the logits of ImageNet's other classes."""
    colors = mean_color_model()
    return keras.Model(colors.input, keras.ops.pad(colors.output, ((0, 0), (0, 997))))


def test_real_accepts_any_label_and_skips_unlabeled_images(tmp_path):
    """The labels in the file have the order of the numbers in the images' names."""
    inputs = color_inputs(test=4)
    classes = inputs.test.labels.tolist()
    # The model's predictions are right, unlabeled, wrong and right.
    labels_of_number = {
        4: [classes[0], (classes[0] + 2) % 3],
        1: [],
        3: [(classes[2] + 1) % 3],
        2: [classes[3]],
    }
    numbers = list(labels_of_number)
    labels = [labels_of_number[number] for number in sorted(numbers)]
    path = tmp_path / "real.json"
    path.write_text(json.dumps(labels))

    def name_of(index):
        return f"folder/ILSVRC2012_val_{numbers[index]:08}.JPEG"

    test = dataclasses.replace(inputs.test, name_of=name_of)
    inputs = dataclasses.replace(inputs, test=test)
    metrics = accuracy.real_from_file(imagenet_model(), inputs, path=str(path))
    assert metrics == {"accuracy": pytest.approx(2 / 3)}
    path.write_text(json.dumps(labels[:2]))
    with pytest.raises(ValueError, match="to 00000002, in the order"):
        accuracy.real_from_file(imagenet_model(), inputs, path=str(path))


def test_real_rejects_models_without_imagenet_classes(tmp_path):
    """Labels below 1000 are also outputs of ImageNet-21k's classes and of features."""
    path = tmp_path / "real.json"
    path.write_text("[[0], [1]]")
    for model in (small_vit(classes=21_843), small_vit(include_top=False, hidden_size=1024)):
        with pytest.raises(ValueError, match="1000 classes, in their usual order"):
            accuracy.check_real_labels(model, color_inputs(), str(path))


@pytest.fixture
def images(tmp_path):
    """Writes two images to a folder of the validation split, and labels of which the first is
    right.

    Returns the path of the file of labels and the name of the evaluator.
    """
    root = tmp_path / "a+b"  # a plus separates datasets but may also be part of a path
    folder = root / "images" / "val"
    folder.mkdir(parents=True)
    for number in (1, 2):
        pixels = np.full((8, 8, 3), COLORS[number - 1], "uint8")
        (folder / f"ILSVRC2012_val_{number:08}.png").write_bytes(png(pixels))
    (root / "real.json").write_text("[[0], [2]]")
    return root / "real.json", f"real:{root}/real.json@{root}/images"


@pytest.mark.full
def test_real_reads_a_folder_of_images(images):
    _, name = images
    assert evaluation.evaluate(imagenet_model(), [name]) == {f"{name}/accuracy": 0.5}


@pytest.mark.full
def test_real_rejects_nan_outputs(images):
    _, name = images
    model = imagenet_model()
    model.get_layer("head").bias.assign(np.full(3, np.nan))
    with pytest.raises(ValueError, match="must be finite"):
        evaluation.evaluate(model, [name])


@pytest.mark.full
def test_real_rejects_bad_files_of_labels(images):
    path, name = images
    for labels in ("[[0], [1000]]", "[[0], [[1]]]", '[["0"], []]'):
        path.write_text(labels)
        with pytest.raises(ValueError, match=r"integers in \[0, 1000\)"):
            evaluation.evaluate(imagenet_model(), [name])
    path.unlink()
    with pytest.raises(ValueError, match="The file must exist"):
        evaluation.evaluate(imagenet_model(), [name])
