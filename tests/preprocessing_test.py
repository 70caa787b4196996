"""Tests of `preprocess_input`, and of the preprocessing that models record."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints import published

from .shared import TWO_LAYERS, randomize_head, to_numpy

SPECIAL = {
    "mean": [100.0, 110.0, 120.0],
    "std": [50.0, 60.0, 70.0],
    "resize": "shorter_side",
    "crop_fraction": 0.875,
}


def small(**arguments):
    defaults = {**TWO_LAYERS, "num_layers": 1, "input_shape": (16, 16, 3)}
    return keras_vit.VisionTransformer(**{**defaults, **arguments})


def special():
    return small(preprocessing=SPECIAL)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_default_range_is_minus_one_to_one(dtype):
    images = np.array([0, 51, 255], dtype).reshape(1, 1, 1, 3)
    result = to_numpy(keras_vit.preprocess_input(images))
    assert result.dtype == "float32"
    np.testing.assert_allclose(result.ravel(), [-1, -0.6, 1], atol=1e-6)


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


@pytest.mark.parametrize("scale", [lambda x: x / 127.5 - 1, lambda x: x / 255])
def test_rejects_already_scaled_pixels(scale):
    pixels = np.random.default_rng(0).integers(0, 256, (1, 4, 4, 3))
    with pytest.raises(ValueError, match="must have pixel values"):
        keras_vit.preprocess_input(scale(pixels))


def pixels_with(value):
    images = np.full((1, 16, 16, 3), 200.0)
    images[0, 0, 0, 0] = value
    return images


def test_range_of_pixels_depends_on_the_bit_depth():
    for value, bit_depth in ((0, 8), (255, 8), (4000, 16), (65535, 16)):
        model = small(preprocessing=keras_vit.Preprocessing(bit_depth=bit_depth))
        keras_vit.preprocess_input(pixels_with(value), model)


@pytest.mark.parametrize(("value", "bit_depth"), [(np.nan, 8), (np.inf, 8), (4000, 8), (70000, 16)])
def test_rejects_out_of_range_values(value, bit_depth):
    model = small(preprocessing=keras_vit.Preprocessing(bit_depth=bit_depth))
    images = pixels_with(value)
    with pytest.raises(ValueError, match=rf"values in \[.*{value:g}\]$"):
        keras_vit.preprocess_input(images, model)


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


def in_sequence(*layers):
    """Returns a functional model of these layers and a Vision Transformer."""
    inputs = x = keras.Input((16, 16, 3))
    for layer in (*layers, small()):
        x = layer(x)
    return keras.Model(inputs, x)


RESCALING = keras.layers.Rescaling(1 / 127.5, -1)
NORMALIZATION = keras.layers.Normalization(mean=127.5, variance=127.5**2)


@pytest.mark.parametrize("layer", [RESCALING, NORMALIZATION, lambda x: x / 127.5 - 1])
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


def test_returned_preprocessing_is_independent_of_model():
    model = special()
    config = model.get_layer("expected_images").get_config()["preprocessing"]
    config["mean"][0] = 0.0
    assert keras_vit.preprocessing_of(model) == keras_vit.Preprocessing(**SPECIAL)


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


def test_published_weights_set_preprocessing(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    files = {(file.collection, file.model): file for file in published.published_files()}
    file = files["augreg", "ViT-Ti/16"]
    file = dataclasses.replace(file, preprocessing=SPECIAL, classes=5)
    monkeypatch.setattr(published, "published_files", lambda: [file])
    (tmp_path / "augreg").mkdir()
    source = keras_vit.ViT_Ti16(input_shape=(32, 32, 3), classes=5)
    checkpoints.save(randomize_head(source), tmp_path / "augreg" / f"{file.name}.npz")
    model = keras_vit.ViT_Ti16(weights="augreg", input_shape=(32, 32, 3))
    assert keras_vit.preprocessing_of(model) == keras_vit.Preprocessing(**SPECIAL)


def test_rejects_model_without_preprocessing():
    with pytest.raises(ValueError, match="must have an `InputPreprocessing` layer"):
        keras_vit.preprocessing_of(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": [1.0]}, "have equal lengths"),
        ({"std": [1.0, 1.0, 0.0]}, "std > 0"),
        ({"resize": "crop"}, "'stretch' or 'shorter_side'"),
        ({"crop_fraction": 1.5}, r"in \(0, 1\]"),
        ({"size": 224}, "a dict with mean, std, resize, crop_fraction and optionally"),
        ({"bit_depth": 12}, "8 or 16"),
    ],
)
def test_rejects_invalid_preprocessing(change, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.InputPreprocessing({**SPECIAL, **change})
