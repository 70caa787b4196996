"""Tests of how SavedModels are exported: arguments, versions and precision."""

import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import keras_vit
from keras_vit import export, files
from keras_vit.models.any_model import set_logits_activation

from ..shared import images_for, random_images
from .conftest import FILES, NAMES, SHAPE, model_inputs, probabilities_of, serve, tiny_model


def test_norms_keep_their_epsilon_in_optimized_graphs(skip_verification, tmp_path):
    # TensorFlow replaces one form of LayerNorm, if its weights are constants, by an operation with
    # epsilon 1e-3. Small activations make the difference visible.
    model = tiny_model()
    for weight in model.weights:
        if "norm" not in weight.path and "head" not in weight.path:
            weight.assign(weight * 1e-2)
    images = random_images((4, *SHAPE))
    loaded = tf.saved_model.load(export.saved_model(model, tmp_path))
    signature = loaded.signatures["tensor"]
    frozen = convert_variables_to_constants_v2(signature)
    reference = probabilities_of(model, images)
    for layer in model._flatten_layers():
        if hasattr(layer, "epsilon"):
            layer.epsilon = 1e-3
    assert np.abs(probabilities_of(model, images) - reference).max() > 1e-3
    np.testing.assert_allclose(signature(images=images)["probabilities"], reference, atol=1e-5)
    np.testing.assert_allclose(frozen(tf.constant(images))[0], reference, atol=1e-5)


def test_features_are_not_served_as_probabilities(tmp_path):
    model = keras_vit.FeatureModel(tiny_model(include_top=False), tokens="pooled")
    nested = keras.Sequential([keras.Input(SHAPE), model])
    for features in (model, nested):
        with pytest.raises(ValueError, match="returns features .*'tensor'"):
            export.saved_model(features, tmp_path)
    classifier = keras.Sequential([keras.Input(SHAPE), model, keras.layers.Dense(len(NAMES))])
    assert len(export.check(classifier)[0]) == len(NAMES)


def test_versions_increase_and_are_never_overwritten(tmp_path, skip_verification):
    model = tiny_model()
    assert export.saved_model(model, tmp_path, version=3) == str(tmp_path / "3")
    with pytest.raises(ValueError, match="never overwritten"):
        export.saved_model(model, tmp_path, version=3)
    assert export.saved_model(model, tmp_path) == str(tmp_path / "4")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 0),
        ("name", "my model"),
        ("top", 0),
        ("max_batch_size", 1.5),
        ("class_names", ["a", "b"]),
        ("class_names", ["a", "b", "c", "d", "e\nf"]),
        ("signatures", ("predict",)),
        ("signatures", ()),
        ("precision", "float16"),
        ("device", "gpu"),
        ("activation", "tanh"),
        ("rounding", "up"),
        ("max_megapixels", 0),
        ("metrics", {"test/accuracy": np.float32(0.5)}),
    ],
)
def test_rejects_bad_arguments_without_writing(name, value, tmp_path):
    with pytest.raises(ValueError, match=f"`{name}` .*must"):
        export.saved_model(tiny_model(), tmp_path / "model", **{name: value})
    assert not (tmp_path / "model").exists()


def test_rejects_unsupported_models(tmp_path):
    with pytest.raises(ValueError, match="logits or probabilities"):
        export.saved_model(tiny_model(classifier="unpooled"), tmp_path)
    with pytest.raises(ValueError, match="none, softmax or sigmoid"):
        export.saved_model(tiny_model(classifier_activation="tanh"), tmp_path)


class Subclassed(keras.Model):
    def call(self, images):
        return keras.ops.mean(images, (1, 2))


def test_rejects_models_of_unknown_image_size():
    model = Subclassed()
    model(np.zeros((1, 8, 8, 3), "float32"))
    with pytest.raises(ValueError, match="must have a static image size"):
        export.check(model, signatures=("tensor",))


def test_image_files_may_have_4_channels(tmp_path, skip_verification):
    model = tiny_model(input_shape=(8, 12, 4))
    loaded = tf.saved_model.load(export.saved_model(model, tmp_path))
    signature = loaded.signatures["serving_default"]
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 4), dtype=np.uint8)
    outputs = signature(image_bytes=tf.io.encode_png(pixels)[None])["probabilities"]
    expected = probabilities_of(model, keras_vit.preprocess_input(pixels[None], model))
    np.testing.assert_allclose(outputs, expected, atol=1e-6)


def test_five_channel_model_has_only_tensor_signature():
    model = tiny_model(input_shape=(8, 12, 5))
    assert export.default_signatures(model) == ("tensor",)
    with pytest.raises(ValueError, match="the signature 'tensor'"):
        export.check(model, signatures=("serving_default",))


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_model_activation_is_not_applied_twice(activation, tmp_path, skip_verification):
    model = tiny_model(classifier_activation=activation)
    path = export.saved_model(model, tmp_path, signatures=("tensor",))
    images = random_images((2, *SHAPE))
    np.testing.assert_allclose(serve(path, images), model(images), atol=1e-6)


def test_nested_sigmoid_model_is_exported_with_sigmoid(tmp_path, skip_verification):
    inner = tiny_model()
    set_logits_activation(inner, "sigmoid")
    inner.save(tmp_path / "model.keras")
    inner = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    model = keras.Sequential([keras.Input(inner.input_shape[1:]), inner])
    path = export.saved_model(model, tmp_path, signatures=("tensor",))
    images = images_for(inner)
    probabilities = keras.ops.sigmoid(model(images))
    np.testing.assert_allclose(serve(path, images), probabilities, atol=1e-6)
    assert export.load_card(path)["activation"] == "sigmoid"


def test_has_model_compares_files_weights_and_names(tmp_path, skip_verification):
    model = tiny_model()
    path = export.saved_model(model, tmp_path, class_names=NAMES, signatures=("tensor",))
    assert export.has_model(path, model, NAMES)
    assert not export.has_model(path, model, NAMES[::-1])
    weights = model.get_weights()
    model.weights[0].assign(model.weights[0] + 1)
    assert not export.has_model(path, model, NAMES)
    model.set_weights(weights)
    os.remove(os.path.join(path, "saved_model.pb"))  # as after an interrupted upload
    assert not export.has_model(path, model, NAMES)


@pytest.mark.parametrize(
    ("policy", "precision", "least", "most"),
    [
        ("mixed_bfloat16", "float32", 0, 1e-6),
        ("float32", "bfloat16", 1e-5, 1e-2),
        ("mixed_bfloat16", "bfloat16", 1e-5, 1e-2),
    ],
)
def test_export_precision_is_independent_of_policy(
    policy, precision, least, most, tmp_path, skip_verification
):
    images = random_images((2, *SHAPE))
    expected = probabilities_of(tiny_model(), images)
    keras.config.set_dtype_policy(policy)
    path = export.saved_model(tiny_model(), tmp_path, precision=precision, signatures=("tensor",))
    # Outputs of bfloat16 differ from those of a float32 model by its rounding errors.
    assert least <= np.abs(serve(path, images) - expected).max() < most


def test_export_of_mirrored_variables_matches_model(exported, tmp_path, skip_verification):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = export.load(exported[0])
        path = export.saved_model(model, tmp_path, signatures=("tensor",))
    images = random_images((2, *SHAPE))
    expected = probabilities_of(exported[1], images)
    np.testing.assert_allclose(serve(path, images), expected, atol=1e-5)


EXPORT = """
import sys
from keras_vit import export
export.saved_model(export.load(sys.argv[1]), sys.argv[2])
"""


def test_export_on_jax_matches_model(exported, tmp_path):
    pytest.importorskip("jax", reason="jax is not installed")
    files.run_python(["-c", EXPORT, exported[0], tmp_path], KERAS_BACKEND="jax")
    serve_files = tf.saved_model.load(tmp_path / "1").signatures["serving_default"]
    outputs = serve_files(image_bytes=tf.constant(FILES))["probabilities"]
    expected = probabilities_of(exported[1], model_inputs(FILES))
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_card_and_labels_describe_model(exported):
    card = export.load_card(exported[0])
    labels = Path(exported[0], "assets/labels.txt").read_text(encoding="utf-8")
    assert card["class_names"] == labels.splitlines() == list(NAMES)
    assert card["preprocessing"]["model"]["resize"] == "stretch"
    assert card["preprocessing"]["rounding"] == "float"  # that of the model
    assert card["preprocessing"]["max_megapixels"] == 20
    assert card["training"] == {"optimizer": {"name": "adamw"}}
    assert card["metrics"] == {"test/accuracy": 0.5}
    assert card["versions"]["keras"] == keras.version()
    differences = card["self_test"]["largest_differences"]
    assert differences.keys() == set(export.SIGNATURES)
    assert max(differences.values()) < 1e-6 < card["self_test"]["tolerance"]


def test_default_name_is_that_of_the_folder(tmp_path, monkeypatch, skip_verification):
    (tmp_path / "animals").mkdir()
    monkeypatch.chdir(tmp_path / "animals")
    path = export.saved_model(tiny_model(), ".", signatures=("tensor",))
    assert Path(path, "README.md").read_text().startswith("# animals\n")


def test_features_have_no_class_names(tmp_path, skip_verification):
    model = tiny_model(include_top=False)
    path = export.saved_model(model, tmp_path, signatures=("features",))
    assert export.load_card(path)["class_names"] == []
    assert " classes" not in Path(path, "README.md").read_text()
    with pytest.raises(ValueError, match="must be 0 names"):
        export.check(model, signatures=("features",), class_names=["a"])
