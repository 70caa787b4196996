"""Tests of the evaluator `real` with a file of ImageNet's reassessed labels."""

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


@pytest.fixture
def images(tmp_path):
    """Writes three images to a folder of the validation split, and a file of labels.

    The model is right for the first image and wrong for the second, and the third has no label.
    Returns the path of the file of labels and the name of the evaluator.
    """
    root = tmp_path / "a+b"  # a plus separates datasets but may also be part of a path
    folder = root / "images" / "val"
    folder.mkdir(parents=True)
    for number, color in enumerate(COLORS, start=2):
        pixels = np.broadcast_to(color, (8, 8, 3)).astype("uint8")
        (folder / f"ILSVRC2012_val_{number:08}.png").write_bytes(png(pixels))
    # The labels have the order of the numbers in the names of the images, which start at 2.
    (root / "real.json").write_text("[[5], [7, 0], [2], []]")
    return root / "real.json", f"real:{root}/real.json@{root}/images"


def test_real_rejects_models_without_imagenet_classes(tmp_path):
    """Labels below 1000 are also outputs of ImageNet-21k's classes and of features."""
    path = tmp_path / "real.json"
    path.write_text("[[0], [1]]")
    for model in (small_vit(classes=21_843), small_vit(include_top=False, hidden_size=1024)):
        with pytest.raises(ValueError, match="1000 classes, in their usual order"):
            accuracy.check_real_labels(model, color_inputs(), str(path))


def test_real_accepts_any_label_and_skips_unlabeled_images(images):
    _, name = images
    assert evaluation.evaluate(imagenet_model(), [name]) == {f"{name}/accuracy": 0.5}


def test_real_requires_labels_for_all_images(images):
    path, name = images
    path.write_text("[[5], [0]]")
    with pytest.raises(ValueError, match="to 00000002, in the order"):
        evaluation.evaluate(imagenet_model(), [name])


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
