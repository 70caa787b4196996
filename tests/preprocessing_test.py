"""Tests of `preprocess_input`, and of the preprocessing that models record."""

import keras
import numpy as np
import pytest

import keras_vit

from .shared import TWO_LAYERS, to_numpy

SPECIAL = {
    "mean": [100.0, 110.0, 120.0],
    "std": [50.0, 60.0, 70.0],
    "resize": "shorter_side",
    "crop_fraction": 0.875,
}
RESCALING = keras.layers.Rescaling(1 / 127.5, -1)


def small(**arguments):
    defaults = {**TWO_LAYERS, "num_layers": 1, "input_shape": (16, 16, 3)}
    return keras_vit.VisionTransformer(**{**defaults, **arguments})


def special():
    return small(preprocessing=SPECIAL)


def in_sequence(*layers):
    """Returns a functional model of these layers and a Vision Transformer."""
    inputs = x = keras.Input((16, 16, 3))
    for layer in (*layers, small()):
        x = layer(x)
    return keras.Model(inputs, x)


def test_default_range_is_minus_one_to_one():
    result = to_numpy(keras_vit.preprocess_input(np.array([[[0, 51, 255]]], "uint8")))
    assert result.dtype == "float32"
    np.testing.assert_allclose(result, [[[-1, -0.6, 1]]], atol=1e-6)


def test_preprocess_input_uses_model_mean_and_std():
    images = np.full((2, 4, 4, 3), 200, "uint8")
    result = to_numpy(keras_vit.preprocess_input(images, special()))
    np.testing.assert_allclose(result[0, 0, 0], [2.0, 1.5, 80 / 70], rtol=1e-6)


def test_rejects_wrong_rank_or_channels():
    with pytest.raises(ValueError, match=r"\(B, H, W, C\) or \(H, W, C\)"):
        keras_vit.preprocess_input(np.zeros((4, 4)))
    gray = np.zeros((1, 16, 16, 1), "float32")
    with pytest.raises(ValueError, match="3 channels; np.repeat"):
        keras_vit.preprocess_input(gray, special())
    with pytest.raises(ValueError, match="3 channels; np.repeat"):
        special()(gray)


@pytest.mark.parametrize(
    ("pixels", "bit_depth"),
    [
        ([0.5, 1], 8),  # looks like pixels divided by 255
        ([-1, 200], 8),
        ([np.nan, 200], 8),
        ([200, np.inf], 8),
        ([200, 4000], 8),
        ([200, 70_000], 16),
    ],
)
def test_rejects_values_that_are_not_pixels(pixels, bit_depth):
    model = small(preprocessing=keras_vit.Preprocessing(bit_depth=bit_depth))
    with pytest.raises(ValueError, match="must have pixel values"):
        keras_vit.preprocess_input(np.resize(pixels, (1, 16, 16, 3)), model)


def test_bit_depth_of_16_allows_larger_pixels():
    white = 2**16 - 1
    preprocessing = keras_vit.Preprocessing(mean=(0,) * 3, std=(white,) * 3, bit_depth=16)
    images = np.full((1, 16, 16, 3), white)
    result = keras_vit.preprocess_input(images, small(preprocessing=preprocessing))
    np.testing.assert_array_equal(to_numpy(result), np.ones_like(images))


@pytest.mark.parametrize(
    "preprocessing", [keras_vit.Preprocessing(), keras_vit.Preprocessing(**SPECIAL)]
)
def test_model_warns_once_about_out_of_range_images(preprocessing):
    pixels = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3)).astype("float32")
    right = (pixels - preprocessing.mean) / preprocessing.std
    twice = (right - preprocessing.mean) / preprocessing.std
    for images, message in ((pixels, "look like pixel values"), (twice, "preprocessed twice")):
        model = small(preprocessing=preprocessing)
        model(right)
        with pytest.warns(UserWarning, match=message):
            model(images)
        model(images)


@pytest.mark.parametrize("layer", [RESCALING, lambda x: x / 127.5 - 1])
def test_rescaling_model_must_declare_preprocessing(layer):
    model = in_sequence(layer)
    with pytest.raises(ValueError, match=r"changes images in '.*InputPreprocessing"):
        keras_vit.preprocessing_of(model)


def test_preprocessing_of_declared_or_unchanged_images():
    pixels = keras_vit.Preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    declared = in_sequence(keras_vit.layers.InputPreprocessing(pixels), RESCALING)
    assert keras_vit.preprocessing_of(declared) == pixels
    unchanged = in_sequence(keras.layers.RandomFlip(), keras.layers.Dropout(0.1))
    assert keras_vit.preprocessing_of(unchanged) == keras_vit.Preprocessing()


def test_preprocessing_survives_copying_wrapping_and_saving(tmp_path):
    everything = {**SPECIAL, "rounding": "uint8", "exif": True, "bit_depth": 16}
    model = small(preprocessing=everything)
    model.save(tmp_path / "model.keras")
    inputs = keras.Input((16, 16, 3))
    for other in (
        model,
        type(model).from_config(model.get_config()),
        keras.models.clone_model(model),
        keras.saving.load_model(tmp_path / "model.keras"),
        keras.Model(inputs, keras.layers.Dense(2)(model(inputs))),
        keras.Model(model.input, model.get_layer("encoder_norm").output),
    ):
        assert keras_vit.preprocessing_of(other) == keras_vit.Preprocessing(**everything)


def test_layer_of_an_earlier_version_loads():
    """Earlier versions saved the layer as `ExpectedImages`, and its preprocessing had only four
    fields."""
    layer = keras.saving.deserialize_keras_object(
        {
            "module": "keras_vit.layers.expected_images",
            "class_name": "ExpectedImages",
            "registered_name": "keras_vit>ExpectedImages",
            "config": {"preprocessing": SPECIAL},
        }
    )
    model = keras.Sequential([keras.Input((16, 16, 3)), layer])
    expected = keras_vit.Preprocessing(**SPECIAL, rounding="float", exif=False)
    assert keras_vit.preprocessing_of(model) == expected


def test_equal_values_expand_to_all_channels():
    preprocessing = keras_vit.Preprocessing(crop_fraction=0.5)
    model = small(input_shape=(16, 16, 12), preprocessing=preprocessing)
    assert keras_vit.preprocessing_of(model).mean == (127.5,) * 12
    with pytest.raises(ValueError, match="each of 12 channels"):
        small(input_shape=(16, 16, 12), preprocessing=SPECIAL)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (keras.layers.Flatten(), "must have an `InputPreprocessing` layer"),
        (keras.layers.Normalization(mean=1, variance=1), "changes images in"),
    ],
)
def test_rejects_model_without_preprocessing(layer, message):
    model = keras.Sequential([keras.Input((16, 16, 3)), layer])
    with pytest.raises(ValueError, match=message):
        keras_vit.preprocessing_of(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": [1.0]}, "have equal lengths"),
        ({"std": [1.0, 1.0, 0.0]}, "std > 0"),
        ({"resize": "crop"}, "'stretch' or 'shorter_side'"),
        ({"crop_fraction": 1.5}, r"in \(0, 1\]"),
        ({"size": 224}, "a dict with mean, std, resize, crop_fraction and optionally"),
    ],
)
def test_rejects_invalid_preprocessing(change, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.InputPreprocessing({**SPECIAL, **change})
