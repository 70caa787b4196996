"""Tests of the predictions, attention maps and pictures of `keras-vit demo` without a browser."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import Preprocessing, inspection
from keras_vit.commands import demo, image_files
from keras_vit.data import Options
from keras_vit.export.decoding import Decoder

from ..shared import SIZES, TWO_LAYERS, random_images, randomize
from .conftest import random_pixels

NAMES = ["cat", "dog", "<b>"]
SHAPE = (16, 24, 3)


def _vit(**changes):
    model = keras_vit.VisionTransformer(**{**TWO_LAYERS, "input_shape": SHAPE, **changes})
    return randomize(model, 0.5, seed=1)


def _resnet():
    return keras_vit.BiTResNet(depth=26, input_shape=(32, 32, 3), classes=3)


def _naflex():
    return keras_vit.NaFlexVisionTransformer(
        **SIZES, input_shape=(16, 16, 3), classes=3, max_patches=16
    )


def _assert_probabilities(demo_model, image, expected, names=("0", "1", "2")):
    probabilities = demo_model.probabilities(image)
    assert tuple(probabilities) == names
    np.testing.assert_allclose(list(probabilities.values()), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "description"),
    [
        (_vit, "images of 24 x 16 pixels; 2 layers of 2 heads, 2 x 3 patches"),
        (_resnet, "images of 32 x 32 pixels; the model has no attention maps to show"),
        (
            _naflex,
            "images of any size, as up to 16 patches; the model has no attention maps to show",
        ),
    ],
    ids=["vision transformer", "resnet", "naflex"],
)
def test_description_has_sizes_of_the_model(build, description):
    model = build()
    demo_model = demo.DemoModel(model, {}, "mine")
    assert demo_model.description == f"{model.count_params():,} parameters; {description}"


def test_attention_is_that_of_the_patch_layer_and_head():
    model = _vit()
    images = random_images((1, *SHAPE))
    chosen = {"patch": (1, 2), "layer": 1, "head": 2}
    maps = demo.DemoModel(model, {}, "mine").attention(images[0], **chosen)
    expected = inspection.token_attention(model, images, **chosen)
    np.testing.assert_array_equal(maps, [attention[0] for attention in expected])


@pytest.mark.parametrize(
    ("changes", "details", "activation"),
    [
        ({}, {}, keras.activations.softmax),
        ({}, {"activation": "sigmoid"}, keras.activations.sigmoid),
        ({"classifier_activation": "softmax"}, {}, keras.activations.linear),
    ],
    ids=["softmax", "sigmoid", "model ends in softmax"],
)
def test_probabilities_use_the_trained_activation(changes, details, activation):
    model = _vit(**changes)
    images = random_images((1, *SHAPE))
    demo_model = demo.DemoModel(model, details, "mine")
    _assert_probabilities(demo_model, images[0], activation(model(images))[0])


def test_images_of_any_size_have_probabilities():
    model = randomize(_naflex())
    demo_model = demo.DemoModel(model, {}, "naflex")
    content = tf.io.encode_png(random_pixels(20, 30, 3)).numpy()
    image, _ = demo_model.reader.read("a.png", content)
    _assert_probabilities(demo_model, image, tf.nn.softmax(model.predict(image[None]))[0])


def test_classes_of_one_name_are_all_shown():
    model = _vit()
    images = random_images((1, *SHAPE))
    demo_model = demo.DemoModel(model, {"class_names": ["crane", "dog", "crane"]}, "mine")
    names = ("crane (0)", "dog", "crane (2)")
    _assert_probabilities(demo_model, images[0], tf.nn.softmax(model(images))[0], names)


def test_shown_images_match_the_model_inputs():
    preprocessing = Preprocessing(mean=(10, 20, 30), std=(40, 50, 60), resize="shorter_side")
    reader = image_files.ImageFileReader(Decoder(SHAPE, preprocessing))
    stored = random_pixels(*SHAPE)
    image, picture = reader.read("a.png", tf.io.encode_png(stored).numpy())
    np.testing.assert_array_equal(picture, stored)
    np.testing.assert_allclose(image, (stored - [10, 20, 30.0]) / [40, 50, 60], atol=1e-5)


def _features():
    resnet = _resnet()
    return keras.Model(resnet.input, resnet.layers[1].output)


@pytest.mark.parametrize(
    ("build", "details", "message"),
    [
        (_vit, {"class_names": NAMES[:2]}, "must be 3 names .*Received: 2 names"),
        (_features, {}, "logits or probabilities"),
        (lambda: _vit(include_top=False), {}, "The model has no classes"),
    ],
    ids=["number of names", "features", "backbone"],
)
def test_rejects_models_without_a_probability_for_each_name(build, details, message):
    with pytest.raises(ValueError, match=message):
        demo.DemoModel(build(), details, "mine")


@pytest.mark.parametrize(
    ("data", "limit"),
    [({}, Options.max_megapixels), ({"max_megapixels": 0.0005}, 0.0005)],
    ids=["default", "run"],
)
def test_images_may_be_as_large_as_in_training(data, limit):
    reader = image_files.Classifier(_vit(), {"recipe": {"data": data}}).reader
    assert reader.decoder.max_megapixels == limit


def test_class_names_may_be_given(tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    demo_model = demo.DemoModel(_vit(), {}, "mine", f"{tmp_path}/names.txt")
    assert demo_model.class_names == tuple(NAMES)


def test_attention_picture_has_the_colors_of_the_map_and_a_white_frame():
    pixels = np.full(SHAPE, 99, np.uint8)
    attention = np.array([[0.1, 0.2, 0.0], [0.0, 0.4, 0.0]])
    picture = demo.attention_picture(pixels, attention, patch=(1, 2), opacity=1.0)
    patch = 8 * 19  # 19 is the integer that enlarges 24 pixels to about 448
    assert picture.shape == (2 * patch, 3 * patch, 3)
    centers = picture[patch // 2 :: patch, patch // 2 :: patch]
    # The last color of viridis, for the maximum, and the first, for 0.
    np.testing.assert_allclose(centers[1, 1:], [[253, 231, 36], [68, 1, 84]], atol=1)
    assert np.all(picture[patch, 2 * patch :] == 255)
    assert np.all(picture[patch:, 2 * patch] == 255)


def test_transparent_attention_shows_the_image():
    pixels = np.full(SHAPE, 99, np.uint8)
    picture = demo.attention_picture(pixels, np.ones((2, 3)), opacity=0.0)
    np.testing.assert_array_equal(picture, 99)


@pytest.mark.parametrize(("x", "y", "patch"), [(0, 0, (0, 0)), (15, 5, (1, 1)), (30, 10, (1, 2))])
def test_patch_is_found_at_a_pixel(x, y, patch):
    assert demo.patch_at(x, y, size=(10, 30), grid=(2, 3)) == patch
