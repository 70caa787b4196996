"""Tests of the evaluator `objectnet` on an archive of three small images."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import evaluation
from keras_vit.evaluation import objectnet

from ..data.helpers import png
from .colors import small_vit

# The titles of the folders, and the names of ImageNet's classes for each title.
TITLES = {"air_fan": "Air fan", "basket": "Basket", "only_here": "Only here", "unseen": "Unseen"}
CLASSES = {"Air fan": "fan", "Basket": "hamper; pannier, bag", "Unseen": "unseen"}
# The folders of images.
COLORS = {"air_fan": (0, 0, 255), "basket": (0, 255, 0), "only_here": (0, 0, 0)}


@pytest.fixture
def archive(tmp_path):
    """Returns the folder of an archive with three images of 36x34 pixels.

    Each image has one color, with a red border of two pixels.
    """
    (tmp_path / "mappings").mkdir()
    mappings = {
        "folder_to_objectnet_label.json": TITLES,
        "objectnet_to_imagenet_1k.json": CLASSES,
        "pytorch_to_imagenet_2012_id.json": {"5": 0, "700": 1, "9": 2, "3": 3},
    }
    for name, content in mappings.items():
        (tmp_path / "mappings" / name).write_text(json.dumps(content))
    (tmp_path / "mappings" / "imagenet_to_label_2012_v2").write_text(
        "pannier, bag\nfan\nhamper\nunseen\n"
    )
    for folder, color in COLORS.items():
        (tmp_path / "images" / folder).mkdir(parents=True)
        pixels = np.full((36, 34, 3), (255, 0, 0), "uint8")
        pixels[2:-2, 2:-2] = color
        (tmp_path / "images" / folder / "1.png").write_bytes(png(pixels))
    return tmp_path


def color_model():
    """Returns a model that predicts class 9 for green and class 8 for blue, with class 700
    second."""
    kernel = np.zeros((3, 1000), "float32")
    kernel[1, 9] = kernel[2, 8] = 1
    kernel[2, 700] = 0.5
    images = keras.Input((15, 15, 3))
    x = keras.layers.GlobalAveragePooling2D()(images)
    head = keras.layers.Dense(1000)
    model = keras.Model(images, head(x))
    head.set_weights([kernel, np.zeros(1000)])
    return model


@pytest.fixture
def name(archive):
    """Returns the name of the evaluator of the archive."""
    return f"objectnet:folder@{archive}"


def test_any_class_of_the_mapping_is_right(archive, name):
    assert objectnet.read_groups(archive) == {"air_fan": (700,), "basket": (5, 9), "unseen": (3,)}
    assert evaluation.evaluate(color_model(), [name]) == {
        f"{name}/accuracy": 0.5,
        f"{name}/top5_accuracy": 1,
        f"{name}/mapped_accuracy": 1,
        f"{name}/mapped_top5_accuracy": 1,
    }
    with pytest.raises(ValueError, match="a local copy as objectnet:folder@FOLDER"):
        evaluation.evaluate(color_model(), ["objectnet"])


def test_images_have_no_border_and_the_crop_of_bit(archive):
    inputs = objectnet.load(color_model(), "folder", str(archive))
    # BiT resizes the shorter side to 512 / 480 of the crop: 15 * 512 / 480 = 16.
    assert inputs.test_options.resize_size == 16
    assert inputs.test_options.eval_crop == "resize_small_crop"
    # Without the border, the images have 32x30 pixels.
    expected = np.broadcast_to(COLORS["air_fan"], (32, 30, 3))
    np.testing.assert_array_equal(inputs.test.read(0)["image"], expected)


def test_images_are_decoded_as_the_model_expects(archive):
    file = tf.io.encode_jpeg(np.random.default_rng(0).integers(0, 256, (36, 34, 3), "uint8"))
    (archive / "images" / "basket" / "2.jpg").write_bytes(file.numpy())
    preprocessing = keras_vit.Preprocessing(library="torchvision")
    model = small_vit(input_shape=(16, 16, 3), preprocessing=preprocessing)
    source = objectnet.load(model, "folder", str(archive)).test
    expected = tf.io.decode_jpeg(file, dct_method="INTEGER_ACCURATE")[2:-2, 2:-2]
    np.testing.assert_array_equal(source.read(2)["image"], expected)


def test_scores_rank_all_or_only_overlapping_classes():
    outputs = np.array([[9.0, 1, 8, 0, 0, 0], [9, 8, 0, 7, 6, 5], [0, 5, 0, 9, 4, 8]])
    labels = np.array([1, 2, 1])
    # No example has the class of group (0,), but the class can still be predicted.
    assert objectnet.score(outputs, labels, [(0,), (1, 2), (4,), ()]) == {
        "accuracy": 0,
        "top5_accuracy": 1,
        "mapped_accuracy": pytest.approx(1 / 3),
        "mapped_top5_accuracy": 1,
    }
    # If ImageNet's class 0 is in no group, the first example is right among the groups.
    scores = objectnet.score(outputs, labels, [(), (1, 2), (4,), ()])
    assert scores["mapped_accuracy"] == pytest.approx(2 / 3)


def test_rejects_other_models_and_folders(archive, name):
    model = small_vit(input_shape=(16, 16, 3))
    with pytest.raises(ValueError, match="1000 classes"):
        evaluation.get([name])[name].check(model)
    names_of_classes = archive / "mappings" / "imagenet_to_label_2012_v2"
    names_of_classes.write_text(names_of_classes.read_text().replace("unseen", "other"))
    with pytest.raises(ValueError, match="must be those of ObjectNet's archive .'unseen'"):
        evaluation.evaluate(color_model(), [name])
    (archive / "mappings" / "objectnet_to_imagenet_1k.json").unlink()
    with pytest.raises(ValueError, match="mappings/objectnet_to_imagenet_1k.json"):
        evaluation.evaluate(color_model(), [name])


def test_damaged_image_is_skipped(archive, name, caplog):
    (archive / "images" / "basket" / "1.png").write_bytes(b"no image")
    metrics = evaluation.evaluate(color_model(), [name], max_bad_share=0.5)
    assert metrics[f"{name}/mapped_accuracy"] == 1
    assert "basket/1.png" in caplog.text
    assert "skipped 1 of 2 examples: 1 cannot be read" in caplog.text
