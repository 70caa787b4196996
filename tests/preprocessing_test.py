"""`preprocess_input` normalizes pixels, and models record the preprocessing they expect."""

import dataclasses
import json
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints import published

from .shared import ROOT, TWO_LAYERS

SPECIAL = {
    "mean": [100.0, 110.0, 120.0],
    "std": [50.0, 60.0, 70.0],
    "resize": "shorter_side",
    "crop_fraction": 0.875,
}


def small(**arguments):
    defaults = {**TWO_LAYERS, "num_layers": 1, "mlp_dim": 8}
    return keras_vit.VisionTransformer(**{**defaults, "input_shape": (16, 16, 3), **arguments})


def special():
    model = small()
    model.preprocessing = SPECIAL
    return model


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_default_range_is_minus_one_to_one(dtype):
    images = np.array([0, 51, 255], dtype).reshape(1, 1, 1, 3)
    result = keras_vit.preprocess_input(images)
    assert keras.backend.standardize_dtype(result.dtype) == "float32"
    np.testing.assert_allclose(keras.ops.convert_to_numpy(result).ravel(), [-1, -0.6, 1], atol=1e-6)


def test_preprocess_input_uses_model_mean_and_std():
    images = np.full((2, 4, 4, 3), 200, "uint8")
    result = keras.ops.convert_to_numpy(keras_vit.preprocess_input(images, special()))
    np.testing.assert_allclose(result[0, 0, 0], [2.0, 1.5, 80 / 70], rtol=1e-6)
    same = keras.ops.convert_to_numpy(keras_vit.preprocess_input(images, small()))
    np.testing.assert_array_equal(
        same, keras.ops.convert_to_numpy(keras_vit.preprocess_input(images))
    )


def test_rejects_wrong_rank_or_channels():
    with pytest.raises(ValueError, match=r"\(B, H, W, C\) or \(H, W, C\).*shape=\(4, 4\)"):
        keras_vit.preprocess_input(np.zeros((4, 4)))
    for model in (special(), small()):
        with pytest.raises(ValueError, match=r"3 channels; np.repeat.*shape \(1, 4, 4, 1\)"):
            keras_vit.preprocess_input(np.zeros((1, 4, 4, 1)), model)
    with pytest.raises(ValueError, match=r"3 channels; np.repeat.*shape \(1, 16, 16, 1\)"):
        small()(np.zeros((1, 16, 16, 1), "float32"))


@pytest.mark.parametrize("scale", [lambda x: x / 127.5 - 1, lambda x: x / 255])
def test_rejects_already_scaled_pixels(scale):
    pixels = np.random.default_rng(0).integers(0, 256, (1, 4, 4, 3))
    with pytest.raises(ValueError, match=r"must have pixel values.*Received: values in \["):
        keras_vit.preprocess_input(scale(pixels))


@pytest.mark.parametrize("value", [np.nan, np.inf, 4000.0])
def test_rejects_out_of_range_values(value):
    images = np.full((1, 16, 16, 3), 200.0)
    keras_vit.preprocess_input(images)
    images[0, 0, 0, 0] = value
    with pytest.raises(ValueError, match=rf"in \[0, 255\]: .*values in \[.*{value:g}\]$"):
        keras_vit.preprocess_input(images)
    deep = small(
        preprocessing=keras_vit.Preprocessing(mean=(32767.5,) * 3, std=(32767.5,) * 3, bit_depth=16)
    )
    if value == 4000:
        keras_vit.preprocess_input(images, deep)
    else:
        with pytest.raises(ValueError, match=r"\[0, 65535\]"):
            keras_vit.preprocess_input(images, deep)


@pytest.mark.parametrize("make", [small, special])
def test_model_warns_once_about_out_of_range_images(make):
    pixels = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3)).astype("float32")
    mean, std = ((127.5,) * 3, (127.5,) * 3) if make is small else (SPECIAL["mean"], SPECIAL["std"])
    right = (pixels - mean) / std
    for images, message in (
        (pixels, "look like pixel values"),
        ((right - mean) / std, "preprocessed twice"),
    ):
        model = make()
        model(right)
        with pytest.warns(UserWarning, match=message):
            model(images)
        model(images)


def _wrapped(*steps):
    inputs = x = keras.Input((16, 16, 3))
    for step in (*steps, small()):
        x = step(x)
    return keras.Model(inputs, x)


def test_rescaling_model_must_declare_preprocessing():
    pixels = keras_vit.Preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    rescaling = keras.layers.Rescaling(1 / 127.5, -1)
    normalization = keras.layers.Normalization(mean=127.5, variance=127.5**2)
    for model in (
        _wrapped(rescaling),
        _wrapped(lambda x: x / 127.5 - 1),
        keras.Sequential([keras.Input((16, 16, 3)), normalization, small()]),
    ):
        with pytest.raises(ValueError, match=r"changes images in '.*InputPreprocessing"):
            keras_vit.preprocessing_of(model)
    first = keras_vit.layers.InputPreprocessing(pixels)
    assert keras_vit.preprocessing_of(_wrapped(first, rescaling)) == pixels
    unchanged = _wrapped(keras.layers.RandomFlip(), keras.layers.Dropout(0.1))
    assert keras_vit.preprocessing_of(unchanged) == keras_vit.Preprocessing()


def test_preprocessing_survives_config_clone_and_wrapping():
    model = special()
    inputs = keras.Input((16, 16, 3))
    wrapped = keras.Model(inputs, keras.layers.Dense(2)(model(inputs)))
    features = keras.Model(model.input, model.get_layer("encoder_norm").output)
    for other in (
        model,
        type(model).from_config(model.get_config()),
        keras.models.clone_model(model),
        keras.models.model_from_json(model.to_json()),
        wrapped,
        features,
    ):
        assert keras_vit.preprocessing_of(other) == keras_vit.Preprocessing(**SPECIAL)


@pytest.mark.full
def test_preprocessing_survives_loading_in_another_process(tmp_path):
    special().save(tmp_path / "model.keras")
    code = (
        "import sys, keras, keras_vit; "
        "print(keras_vit.preprocessing_of(keras.saving.load_model(sys.argv[1])).to_config())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.keras")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(keras_vit.Preprocessing(**SPECIAL).to_config())


def test_returned_preprocessing_is_independent_of_model():
    model = special()
    config = model.get_layer("expected_images").get_config()["preprocessing"]
    config["mean"][0] = 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        keras_vit.preprocessing_of(model).rounding = "uint8"
    assert keras_vit.preprocessing_of(model) == keras_vit.Preprocessing(**SPECIAL)


def test_preprocessing_survives_saving(tmp_path):
    everything = {**SPECIAL, "rounding": "uint8", "exif": True, "bit_depth": 16}
    small(preprocessing=everything).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert keras_vit.preprocessing_of(loaded) == keras_vit.Preprocessing(**everything)


def test_loads_file_of_earlier_version(tmp_path):
    """Earlier versions saved the layer as `ExpectedImages`, and its preprocessing had only four
    fields."""
    model = special()
    keras.Model(model.inputs, model.outputs).save(tmp_path / "new.keras")
    with (
        zipfile.ZipFile(tmp_path / "new.keras") as new,
        zipfile.ZipFile(tmp_path / "old.keras", "w") as old,
    ):
        for name in new.namelist():
            content = new.read(name)
            if name == "config.json":
                config = json.loads(content)
                layer = next(
                    part for part in config["config"]["layers"] if part["name"] == "expected_images"
                )
                layer |= {
                    "module": "keras_vit.layers.expected_images",
                    "class_name": "ExpectedImages",
                }
                layer["registered_name"] = "keras_vit>ExpectedImages"
                layer["config"]["preprocessing"] = SPECIAL
                content = json.dumps(config)
            old.writestr(name, content)
    loaded = keras.saving.load_model(tmp_path / "old.keras")
    assert keras_vit.preprocessing_of(loaded) == keras_vit.Preprocessing(
        **SPECIAL, rounding="float", exif=False
    )


def test_equal_values_expand_to_all_channels():
    model = small(
        input_shape=(16, 16, 12), preprocessing=keras_vit.Preprocessing(crop_fraction=0.5)
    )
    assert keras_vit.preprocessing_of(model).mean == (127.5,) * 12
    assert keras_vit.preprocessing_of(model).channels == 12
    with pytest.raises(ValueError, match="each of 12 channels"):
        small(input_shape=(16, 16, 12), preprocessing=SPECIAL)


def test_published_weights_set_preprocessing(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    entry = next(
        entry
        for entry in published.published_files()
        if (entry.collection, entry.model) == ("augreg", "ViT-Ti/16")
    )
    (tmp_path / "augreg").mkdir()
    source = keras_vit.ViT_Ti16(input_shape=(32, 32, 3), classes=21843)
    source.get_layer("head").kernel.assign(np.ones((192, 21843)))
    checkpoints.save(source, tmp_path / "augreg" / f"{entry.name}.npz")
    monkeypatch.setattr(
        published, "published_files", lambda: [dataclasses.replace(entry, preprocessing=SPECIAL)]
    )
    model = keras_vit.ViT_Ti16(weights="augreg", input_shape=(32, 32, 3))
    assert model.output_shape == (None, 21843)
    assert keras_vit.preprocessing_of(model) == keras_vit.Preprocessing(**SPECIAL)


def test_rejects_model_without_preprocessing():
    with pytest.raises(ValueError, match="must have an `InputPreprocessing` layer"):
        keras_vit.preprocessing_of(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"mean": [1.0]}, "have equal lengths"),
        ({"std": [1.0, 1.0, 0.0]}, "std > 0"),
        ({"resize": "crop"}, "'stretch' or 'shorter_side'"),
        ({"crop_fraction": 1.5}, r"in \(0, 1\]"),
        (
            {"size": 224},
            "a dict with mean, std, resize, crop_fraction and optionally rounding, exif, bit_depth",
        ),
        ({"rounding": "int8"}, "'float' or 'uint8'"),
        ({"bit_depth": 12}, "8 or 16. Received: bit_depth=12"),
    ],
)
def test_rejects_invalid_preprocessing(change, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.InputPreprocessing({**SPECIAL, **change})
