"""Tests of the predictions, attention maps and pictures of `keras-vit demo` without a browser."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import Preprocessing, export, inspection
from keras_vit.commands import demo, image_files, shared_flags
from keras_vit.data import Options
from keras_vit.export.decoding import Decoder

from ..shared import SIZES, TWO_LAYERS, images_for, randomize
from .conftest import random_pixels

NAMES = ["cat", "dog", "<b>"]


def _vit(**changes):
    model = keras_vit.VisionTransformer(**{**TWO_LAYERS, "input_shape": (16, 24, 3), **changes})
    return randomize(model, 0.5, seed=1)


def _values(demo_model, image):
    """Returns the probabilities of an image, in the order of the classes."""
    probabilities = demo_model.probabilities(image)
    assert list(probabilities) == list(demo_model.class_names)
    return list(probabilities.values())


@pytest.mark.parametrize(
    ("changes", "description"),
    [
        ({}, "images of 24 x 16 pixels; 2 layers of 2 heads, 2 x 3 patches"),
        ({"classifier": "map"}, "2 x 3 patches"),
        ({"resnet_blocks": (1,), "patch_size": 2, "input_shape": (32, 64, 3)}, "4 x 8 patches"),
    ],
    ids=["token", "map", "hybrid"],
)
def test_predictions_and_attention_match_the_model(changes, description):
    model = _vit(**changes)
    demo_model = demo.DemoModel(model, {}, "mine")
    assert description in demo_model.description
    inputs = images_for(model, 1)
    np.testing.assert_allclose(
        _values(demo_model, inputs[0]), tf.nn.softmax(model(inputs))[0], atol=1e-6
    )
    rollout, attention = demo_model.attention(inputs[0], patch=(1, 1), layer=1, head=2)
    scores = inspection.attention_scores(model, inputs)
    prefix = scores.shape[-1] - demo_model.grid[0] * demo_model.grid[1]
    row = prefix + demo_model.grid[1] + 1
    np.testing.assert_allclose(attention.ravel(), scores[0, 0, 1, row, prefix:], atol=1e-6)
    np.testing.assert_allclose(
        rollout.ravel(), inspection.attention_rollout(scores)[0, row, prefix:], atol=1e-6
    )


def test_classes_of_one_name_are_all_shown():
    model = _vit()
    demo_model = demo.DemoModel(model, {"class_names": ["crane", "dog", "crane"]}, "")
    image = np.ones((16, 24, 3), "float32")
    shown = demo_model.probabilities(image)
    assert list(shown) == ["crane (0)", "dog", "crane (2)"]
    expected = tf.nn.softmax(model(image[None]))[0]
    np.testing.assert_allclose(list(shown.values()), expected, atol=1e-6)


def test_shown_images_match_the_model_inputs():
    preprocessing = Preprocessing(mean=(10, 20, 30), std=(40, 50, 60), resize="shorter_side")
    reader = image_files.ImageFileReader(Decoder((16, 24, 3), preprocessing))
    stored = random_pixels(16, 24, 3)
    image, picture = reader.read("a.png", tf.io.encode_png(stored).numpy())
    np.testing.assert_array_equal(picture, stored)
    np.testing.assert_allclose(image, (stored - [10, 20, 30.0]) / [40, 50, 60], atol=1e-5)


def test_probabilities_use_the_trained_activation():
    model = _vit()
    image = np.ones((16, 24, 3), "float32")
    logits = model(image[None])[0]
    sigmoid = demo.DemoModel(model, {"activation": "sigmoid"}, "")
    np.testing.assert_allclose(
        _values(sigmoid, image), keras.activations.sigmoid(logits), atol=1e-6
    )
    ends_in_softmax = _vit(classifier_activation="softmax")
    probabilities = _values(demo.DemoModel(ends_in_softmax, {}, ""), image)
    # No second softmax.
    np.testing.assert_allclose(probabilities, ends_in_softmax(image[None])[0], atol=1e-6)


def test_demo_handles_models_without_attention_or_classes():
    resnet = keras_vit.BiTResNet(depth=26, input_shape=(32, 32, 3), classes=3)
    demo_model = demo.DemoModel(resnet, {"class_names": NAMES}, "resnet")
    assert not demo_model.layers
    assert "no attention maps to show" in demo_model.description
    probabilities = _values(demo_model, np.ones((32, 32, 3), "float32"))
    np.testing.assert_allclose(sum(probabilities), 1, atol=1e-5)
    with pytest.raises(ValueError, match="must be 3 names .*Received: 2 names"):
        demo.DemoModel(resnet, {"class_names": NAMES[:2]}, "resnet")
    with pytest.raises(ValueError, match="logits or probabilities"):
        demo.DemoModel(keras.Model(resnet.input, resnet.layers[1].output), {}, "features")
    with pytest.raises(ValueError, match="The model has no classes"):
        demo.DemoModel(_vit(include_top=False), {}, "backbone")


def test_demo_describes_models_for_images_of_any_size():
    sizes = {**SIZES, "input_shape": (16, 16, 3), "classes": 3}
    model = keras_vit.NaFlexVisionTransformer(**sizes, max_patches=16)
    demo_model = demo.DemoModel(model, {}, "naflex")
    assert "; images of any size, as up to 16 patches; the model has no" in demo_model.description
    content = tf.io.encode_png(random_pixels(20, 30, 3)).numpy()
    image, _ = demo_model.reader.read("a.png", content)
    np.testing.assert_allclose(sum(_values(demo_model, image)), 1, atol=1e-5)


def test_images_may_be_as_large_as_in_training(monkeypatch):
    limits = []
    check = export.check
    monkeypatch.setattr(
        export, "check", lambda *a, **k: limits.append(k["max_megapixels"]) or check(*a, **k)
    )
    model = _vit()
    content = tf.io.encode_png(random_pixels(20, 30, 3)).numpy()
    image_files.Classifier(model, {}).reader.read("a.png", content)
    small = image_files.Classifier(model, {"recipe": {"data": {"max_megapixels": 0.0005}}})
    with pytest.raises(ValueError, match="0.0005 megapixels"):
        small.reader.read("a.png", content)
    assert limits == [Options.max_megapixels, 0.0005]
    decoders = []
    monkeypatch.setattr(
        image_files, "Decoder", lambda *a: decoders.append(Decoder(*a)) or decoders[-1]
    )
    image_files.reader_of(model)
    assert decoders[0].max_megapixels == Options.max_megapixels


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    model = _vit(num_layers=1)
    model.save(folder / "model.keras")
    signatures = ("serving_default", "attention")
    export.saved_model(
        model, folder / "v", class_names=NAMES, activation="sigmoid", signatures=signatures
    )
    return model, folder


def _load(path, class_names=""):
    return demo.DemoModel(*shared_flags.load_model(str(path)), "title", class_names)


def test_demo_loads_keras_files_and_exports(exported):
    model, folder = exported
    ours = _load(folder / "v" / "1")
    assert list(ours.class_names) == NAMES
    assert ours.layers == 1
    image = np.ones((16, 24, 3), "float32")
    np.testing.assert_allclose(
        _values(ours, image), keras.activations.sigmoid(model(image[None]))[0], atol=1e-6
    )
    (folder / "names.txt").write_text("\n".join(NAMES))
    assert _load(folder / "model.keras", str(folder / "names.txt")).class_names == tuple(NAMES)
    with pytest.raises(ValueError, match="only published for 1000 and 21843 classes"):
        _load(folder / "model.keras", "published")


def test_attention_picture_marks_the_patch():
    pixels = np.full((16, 24, 3), 255, np.uint8)
    attention = np.array([[0.1, 0.2, 0.0], [0.0, 0.4, 0.0]])
    picture = demo.attention_picture(pixels, attention, patch=(1, 2), opacity=1.0)
    factor = round(448 / 24)
    assert picture.shape == (16 * factor, 24 * factor, 3)
    centers = picture[4 * factor :: 8 * factor, 4 * factor :: 8 * factor]
    # The last viridis color, for the maximum, and the first, for 0.
    np.testing.assert_allclose(centers[1, 1], [253, 231, 36], atol=1)
    np.testing.assert_allclose(centers[1, 2], [68, 1, 84], atol=1)
    assert np.all(picture[8 * factor, 16 * factor :] == 255)
    assert np.all(picture[8 * factor :, 16 * factor] == 255)
    np.testing.assert_array_equal(demo.attention_picture(pixels, attention, opacity=0.0), 255)
    size = picture.shape[:2]
    assert demo.patch_at(0, 0, size, (2, 3)) == (0, 0)
    assert demo.patch_at(size[1] // 3, size[0] // 2, size, (2, 3)) == (1, 1)
    assert demo.patch_at(size[1], size[0], size, (2, 3)) == (1, 2)
