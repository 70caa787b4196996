"""Pixel values go into a model as it expects them, and its outputs come out as names."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints

SPECIAL = {"mean": [100.0, 110.0, 120.0], "std": [50.0, 60.0, 70.0], "resize": "shorter_side", "crop_fraction": 0.875}


def small(**arguments):
    defaults = {"patch_size": 8, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "mlp_dim": 8, "classes": 3}
    return keras_vit.VisionTransformer(**{**defaults, "input_shape": (16, 16, 3), **arguments})


def special():
    model = small()
    model.get_layer("expected_images").preprocessing = SPECIAL
    return model


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_pixels_become_minus_one_to_one(dtype):
    images = np.array([0, 51, 255], dtype).reshape(1, 1, 1, 3)
    result = keras_vit.preprocess_input(images)
    assert keras.backend.standardize_dtype(result.dtype) == "float32"
    np.testing.assert_allclose(keras.ops.convert_to_numpy(result).ravel(), [-1, -0.6, 1], atol=1e-6)


def test_a_models_own_range_is_used_where_the_model_is_given():
    images = np.full((2, 4, 4, 3), 200, "uint8")
    result = keras.ops.convert_to_numpy(keras_vit.preprocess_input(images, special()))
    np.testing.assert_allclose(result[0, 0, 0], [2.0, 1.5, 80 / 70], rtol=1e-6)
    same = keras.ops.convert_to_numpy(keras_vit.preprocess_input(images, small()))
    np.testing.assert_array_equal(same, keras.ops.convert_to_numpy(keras_vit.preprocess_input(images)))


def test_images_of_another_rank_or_channels_are_refused():
    with pytest.raises(ValueError, match=r"\(B, H, W, C\) or \(H, W, C\).*shape=\(4, 4\)"):
        keras_vit.preprocess_input(np.zeros((4, 4)))
    with pytest.raises(ValueError, match="3 channels"):
        keras_vit.preprocess_input(np.zeros((1, 4, 4, 1)), special())


def test_the_preprocessing_survives_config_clone_and_wrapping():
    model = special()
    inputs = keras.Input((16, 16, 3))
    wrapped = keras.Model(inputs, keras.layers.Dense(2)(model(inputs)))
    features = keras.Model(model.input, model.get_layer("encoder_norm").output)
    for other in (
        model,
        keras.Model.from_config(model.get_config()),
        keras.models.clone_model(model),
        keras.models.model_from_json(model.to_json()),
        wrapped,
        features,
    ):
        assert keras_vit.preprocessing_of(other) == SPECIAL


def test_the_preprocessing_survives_a_file_and_another_process(tmp_path):
    special().save(tmp_path / "model.keras")
    code = (
        "import sys, keras, keras_vit; "
        "print(keras_vit.preprocessing_of(keras.saving.load_model(sys.argv[1])))"
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.keras")],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(SPECIAL)


def test_what_is_returned_cannot_change_the_model():
    model = special()
    keras_vit.preprocessing_of(model)["mean"][0] = 0.0
    assert keras_vit.preprocessing_of(model) == SPECIAL


def test_a_load_of_published_weights_sets_it(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    row = next(row for row in checkpoints.published.PUBLISHED if row.collection == "augreg" and "Ti_16" in row.name)
    (tmp_path / "augreg").mkdir()
    source = keras_vit.ViT_Ti16(input_shape=(32, 32, 3), classes=21843)
    source.get_layer("head").kernel.assign(np.ones((192, 21843)))
    checkpoints.save(source, tmp_path / "augreg" / f"{row.name}.npz")
    monkeypatch.setattr(checkpoints.published, "_PREPROCESSING", SPECIAL)
    model = keras_vit.ViT_Ti16(weights="augreg", input_shape=(32, 32, 3))
    assert model.output_shape == (None, 21843)
    assert keras_vit.preprocessing_of(model) == SPECIAL


def test_a_model_that_says_nothing_is_refused():
    with pytest.raises(ValueError, match="does not say how images must be prepared"):
        keras_vit.preprocessing_of(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"mean": [1.0]}, "of equal length"),
        ({"std": [1.0, 1.0, 0.0]}, "above 0"),
        ({"resize": "crop"}, '"stretch" or "shorter_side"'),
        ({"crop_fraction": 1.5}, r"in \(0, 1\]"),
        ({"size": 224}, "must be a dict with crop_fraction, mean, resize, std"),
    ],
)
def test_a_preprocessing_that_is_none_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.InputPreprocessing({**SPECIAL, **change})


def test_the_best_classes_come_first_with_their_names():
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], "float32")
    decoded = keras_vit.decode_predictions(scores, top=2, names=["cat", "dog", "owl"])
    assert [[(i, name) for i, name, _ in row] for row in decoded] == [
        [(1, "dog"), (2, "owl")],
        [(0, "cat"), (2, "owl")],
    ]
    assert decoded[0][0][2] == pytest.approx(0.7)
    assert len(keras_vit.decode_predictions(scores, top=9, names=["a", "b", "c"])[0]) == 3


@pytest.mark.parametrize("classes, file", [(1000, "ilsvrc2012"), (21843, "imagenet21k")])
def test_the_published_names_come_through_the_mirror(classes, file, tmp_path, monkeypatch):
    (tmp_path / "bit_models").mkdir()
    path = tmp_path / "bit_models" / f"{file}_wordnet_lemmas.txt"
    path.write_text("".join(f"class {i}\n" for i in range(classes)))
    monkeypatch.setenv("KERAS_VIT_WEIGHTS", str(tmp_path))
    scores = np.zeros((1, classes), "float32")
    scores[0, 17] = 1
    assert keras_vit.decode_predictions(scores, top=1) == [[(17, "class 17", 1.0)]]
    path.write_text("one\n")
    with pytest.raises(ValueError, match=f"a name for each class.*classes={classes}, names=1"):
        keras_vit.decode_predictions(scores)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"predictions": np.zeros(3)}, r"\(B, classes\)"),
        ({"predictions": np.zeros((1, 3))}, "1000 and 21843 classes; give a list"),
        ({"predictions": np.zeros((1, 3)), "names": ["a"]}, "classes=3, names=1"),
        ({"predictions": np.zeros((1, 1)), "names": ["a"], "top": 0}, "`top` must be an integer of 1 or more"),
    ],
)
def test_predictions_that_cannot_be_named_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.decode_predictions(**arguments)
