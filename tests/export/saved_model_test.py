"""Tests of the outputs, errors and versions of SavedModel exports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import keras_vit
from keras_vit import export, inspection
from keras_vit.export import verification
from keras_vit.models.any_model import set_logits_activation

from ..shared import ROOT, images_for, random_images
from .conftest import NAMES, SHAPE, image_file, tiny_model

module = sys.modules["keras_vit.export.saved_model"]  # `export.saved_model` is a function
FILES = [image_file(9, 14, seed=1), image_file(40, 21, "JPEG", seed=2), image_file(8, 12, seed=3)]


@pytest.fixture(scope="module")
def signatures(exported):
    loaded = tf.saved_model.load(exported[0])
    yield loaded.signatures
    del loaded


@pytest.fixture
def skip_verification(monkeypatch):
    """Skips the verification of the export, which would run in a child process."""
    monkeypatch.setattr(module, "verify", lambda *_: {})


def expected(model, images):
    return keras.ops.convert_to_numpy(keras.ops.softmax(model(images)))


def resized(file):
    image = tf.cast(tf.io.decode_image(file, channels=3), tf.float32)
    return (tf.image.resize(image, SHAPE[:2]) - 127.5) / 127.5


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
    reference = expected(model, images)
    for norm in [layer for layer in model._flatten_layers() if hasattr(layer, "epsilon")]:
        norm.epsilon = 1e-3
    assert np.abs(expected(model, images) - reference).max() > 1e-3
    tensor = tf.constant(images)
    np.testing.assert_allclose(signature(images=tensor)["probabilities"], reference, atol=1e-5)
    np.testing.assert_allclose(frozen(tensor)[0], reference, atol=1e-5)


def test_signatures_have_expected_shapes_and_dtypes(signatures):
    def dtypes_and_shapes(specs):
        return {key: (spec.dtype.name, spec.shape.as_list()) for key, spec in specs.items()}

    specs = {
        name: tuple(
            map(
                dtypes_and_shapes,
                (signature.structured_input_signature[1], signature.structured_outputs),
            )
        )
        for name, signature in signatures.items()
    }
    top = {"top_classes": ("string", [None, 3]), "top_probabilities": ("float32", [None, 3])}
    probabilities = {"probabilities": ("float32", [None, 5])}
    assert specs == {
        "serving_default": ({"image_bytes": ("string", [None])}, probabilities | top),
        "tensor": ({"images": ("float32", [None, *SHAPE])}, probabilities),
        "classify": (
            {"inputs": ("string", [None])},
            {"classes": ("string", [None, 3]), "scores": ("float32", [None, 3])},
        ),
        "features": (
            {"image_bytes": ("string", [None])},
            {"representation": ("float32", [None, 8]), "patches": ("float32", [None, 2, 3, 8])},
        ),
        "attention": (
            {"image_bytes": ("string", [None])},
            {"attention": ("float32", [None, *SHAPE[:2]])},
        ),
    }


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_tensor_signature_matches_model(exported, signatures, batch):
    images = random_images((batch, *SHAPE), seed=batch)
    outputs = signatures["tensor"](images=tf.constant(images))["probabilities"]
    np.testing.assert_allclose(outputs, expected(exported[1], images), atol=1e-6)


def test_default_signature_matches_model(exported, signatures):
    outputs = signatures["serving_default"](image_bytes=tf.constant(FILES))
    probabilities = expected(exported[1], tf.stack([resized(file) for file in FILES]))
    np.testing.assert_allclose(outputs["probabilities"], probabilities, atol=1e-6)
    order = np.argsort(-probabilities, axis=-1)[:, :3]
    assert [[name.decode() for name in row] for row in outputs["top_classes"].numpy()] == [
        [NAMES[i] for i in row] for row in order
    ]
    np.testing.assert_allclose(
        outputs["top_probabilities"], np.take_along_axis(probabilities, order, -1), atol=1e-6
    )


@pytest.mark.full
def test_classify_matches_default_signature(signatures):
    features = [
        tf.train.Features(
            feature={"image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[file]))}
        )
        for file in FILES
    ]
    inputs = tf.constant(
        [tf.train.Example(features=feature).SerializeToString() for feature in features]
    )
    outputs = signatures["classify"](inputs=inputs)
    same = signatures["serving_default"](image_bytes=tf.constant(FILES))
    np.testing.assert_array_equal(outputs["classes"], same["top_classes"])
    np.testing.assert_allclose(outputs["scores"], same["top_probabilities"], atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="image/encoded"):
        signatures["classify"](inputs=tf.constant([tf.train.Example().SerializeToString()]))


def test_features_and_attention_match_model(exported, signatures):
    model = exported[1]
    images = np.stack([resized(file) for file in FILES])
    outputs = signatures["features"](image_bytes=tf.constant(FILES))
    np.testing.assert_allclose(
        outputs["representation"], keras_vit.features(model, images, tokens="pooled"), atol=1e-5
    )
    patches = keras_vit.features(model, images, tokens="patch", grid=True)
    np.testing.assert_allclose(outputs["patches"], patches, atol=1e-5)
    maps = signatures["attention"](image_bytes=tf.constant(FILES))["attention"]
    np.testing.assert_allclose(maps, inspection.attention_maps(model, images), atol=1e-6)


# Inputs of the wrong rank are not tested here, because they could abort this process.
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tensor", np.zeros((2, 9, 12, 3)), "not compatible with expected shape"),
        ("tensor", np.zeros((2, 8, 12, 1)), "not compatible with expected shape"),
        ("tensor", np.zeros((8, *SHAPE)), "1 to 7 images"),
        ("tensor", np.zeros((0, *SHAPE)), "1 to 7 images"),
        ("tensor", np.full((1, *SHAPE), np.nan), "must be finite"),
        ("tensor", np.full((1, *SHAPE), np.inf), "must be finite"),
        ("tensor", np.full((1, *SHAPE), 1e38), "output is not finite"),
        ("serving_default", [b""], "not an image in a known format"),
        ("serving_default", [b"text"], "not an image in a known format"),
        ("serving_default", [FILES[0], FILES[0][:50]], "PNG|image"),
        ("serving_default", FILES[:1] * 8, "1 to 7 images"),
        ("serving_default", [], "1 to 7 images"),
        ("features", [b"text"], "not an image in a known format"),
        ("features", FILES[:1] * 8, "1 to 7 images"),
        ("attention", [FILES[0], FILES[0][:50]], "PNG|image"),
        ("attention", [], "1 to 7 images"),
    ],
)
def test_signatures_reject_bad_input_and_keep_working(signatures, name, values, message):
    (spec,) = signatures[name].structured_input_signature[1].values()
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signatures[name](**{spec.name: tf.constant(values, spec.dtype)})
    probabilities = signatures["tensor"](images=tf.zeros((1, *SHAPE)))["probabilities"]
    assert np.sum(probabilities) == pytest.approx(1, abs=1e-5)


def test_rejects_huge_image_from_its_header(signatures):
    huge = bytearray(FILES[0])
    # Width and height in the PNG's IHDR.
    huge[16:24] = (20_000).to_bytes(4, "big") + (15_000).to_bytes(4, "big")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"larger than 50 megapixels.*\n?.*15000 20000"
    ):
        signatures["serving_default"](image_bytes=tf.constant([bytes(huge)]))


@pytest.mark.full
def test_wrong_output_is_not_published(tmp_path, monkeypatch):
    def wrong(*arguments):
        copy = real(*arguments)
        copy.weights[-1].assign(copy.weights[-1] + np.arange(5.0))
        return copy

    real = module.inference_copy
    monkeypatch.setattr(module, "inference_copy", wrong)
    with pytest.raises(
        export.SelfTestError, match=r"tensor: probabilities differs by .*See .*partial-"
    ):
        export.saved_model(tiny_model(), tmp_path, signatures=("tensor",))
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("partial-")
    assert (kept / "saved_model.pb").exists()


def test_verification_of_many_small_probabilities(tmp_path):
    softmax = tf.function(lambda images: {"probabilities": tf.nn.softmax(images)})
    spec = tf.TensorSpec((None, 21_843), tf.float32, "images")
    tf.saved_model.save(
        tf.Module(), tmp_path / "served", {"tensor": softmax.get_concrete_function(spec)}
    )
    logits = tf.constant(np.random.default_rng(0).uniform(-0.5, 0.5, (2, 21_843)), tf.float32)

    def verify(probabilities):
        (tmp_path / "cases/tensor").mkdir(parents=True, exist_ok=True)
        for name, tensor in (("inputs", logits), ("probabilities", probabilities)):
            tf.io.write_file(str(tmp_path / "cases/tensor" / name), tf.io.serialize_tensor(tensor))
        verification._main(str(tmp_path / "served"), str(tmp_path / "cases"), 1e-4)

    verify(tf.nn.softmax(logits + 1e-5 * logits**2))
    for wrong in (
        tf.fill(logits.shape, 1 / 21_843),
        tf.zeros_like(logits),
        1.01 * tf.nn.softmax(logits),
    ):
        with pytest.raises(SystemExit, match="probabilities differs"):
            verify(wrong)


@pytest.mark.parametrize(
    "build", [lambda model: model, lambda model: keras_vit.FeatureModel(model, tokens="pooled")]
)
def test_features_are_not_served_as_probabilities(build, tmp_path):
    model = build(tiny_model(include_top=False))
    wrapped = keras.Sequential([keras.Input(SHAPE), model])
    for whole in (model, wrapped):
        with pytest.raises(ValueError, match="returns features .*'tensor'"):
            export.saved_model(whole, tmp_path)
    classifier = keras.Sequential([keras.Input(SHAPE), model, keras.layers.Dense(len(NAMES))])
    assert len(export.check(classifier)[0]) == len(NAMES)


@pytest.mark.full
def test_versions_increase_and_are_never_overwritten(tmp_path, skip_verification):
    model = tiny_model()
    assert export.saved_model(model, tmp_path, version=3) == str(tmp_path / "3")
    before = (tmp_path / "3" / "saved_model.pb").read_bytes()
    with pytest.raises(ValueError, match="never overwritten. Received: .*/3, which exists"):
        export.saved_model(model, tmp_path, version=3)
    assert (tmp_path / "3" / "saved_model.pb").read_bytes() == before
    assert export.saved_model(model, tmp_path) == str(tmp_path / "4")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["3", "4"]


def test_failed_rename_leaves_no_files(tmp_path, monkeypatch, skip_verification):
    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr("os.rename", fail)  # the last step of an export
    with pytest.raises(OSError, match="full"):
        export.saved_model(tiny_model(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"version": 0}, "`version` must be an integer of 1 or more. Received: version=0"),
        ({"version": True}, "Received: version=True"),
        ({"name": "my model"}, "fit in a URL. Received: name='my model'"),
        ({"top": 0}, "`top` must be an integer of 1 or more. Received: top=0"),
        ({"max_batch_size": 1.5}, "Received: max_batch_size=1.5"),
        ({"class_names": ["a", "b"]}, "must be 5 names without line breaks. Received: 2 names"),
        ({"class_names": ["a", "b", "c", "d", "e\nf"]}, "without line breaks"),
        (
            {"signatures": ("predict",)},
            r"serving_default, tensor, classify, features, attention. Received: "
            r"signatures=\('predict',\)",
        ),
        ({"signatures": ()}, r"Received: signatures=\(\)"),
        (
            {"precision": "float16"},
            "must be one of float32, bfloat16. Received: precision='float16'",
        ),
        ({"activation": "tanh"}, "must be one of softmax, sigmoid. Received: activation='tanh'"),
        ({"rounding": "up"}, "Received: rounding='up'"),
        ({"max_megapixels": 0}, "Received: max_megapixels=0"),
    ],
)
def test_rejects_bad_arguments_without_writing(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export.saved_model(tiny_model(), tmp_path / "model", **arguments)
    assert not (tmp_path / "model").exists()


def test_rejects_unsupported_models(tmp_path):
    with pytest.raises(ValueError, match=r"logits or probabilities \(B, classes\)"):
        export.saved_model(tiny_model(classifier="unpooled"), tmp_path)
    with pytest.raises(ValueError, match=r"none, softmax or sigmoid. Received: activation='tanh'"):
        export.saved_model(tiny_model(classifier_activation="tanh"), tmp_path)
    with pytest.raises(ValueError, match="the signature 'tensor'"):
        export.saved_model(
            tiny_model(input_shape=(8, 12, 5)), tmp_path, signatures=("serving_default",)
        )


class Subclassed(keras.Model):
    def call(self, images):
        return keras.ops.mean(images, (1, 2))


def test_rejects_models_of_unknown_image_size(tmp_path):
    images = keras.Input((None, None, 3))
    subclassed = Subclassed()
    subclassed(np.zeros((1, 8, 8, 3), "float32"))
    for model in (keras.Model(images, keras.layers.GlobalAveragePooling2D()(images)), subclassed):
        for signatures in (None, ("tensor",)):
            with pytest.raises(
                ValueError, match="must have a static image size: make it functional"
            ):
                export.check(model, signatures=signatures)
            with pytest.raises(
                ValueError, match="must have a static image size: make it functional"
            ):
                export.saved_model(model, tmp_path, signatures=signatures)
    assert not any(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.parametrize("channels", [1, 4])
def test_image_files_may_have_1_or_4_channels(channels, tmp_path, skip_verification):
    model = tiny_model(input_shape=(8, 12, channels))
    signature = tf.saved_model.load(export.saved_model(model, tmp_path)).signatures[
        "serving_default"
    ]
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, channels), dtype=np.uint8)
    outputs = signature(image_bytes=tf.io.encode_png(pixels)[None])["probabilities"]
    images = keras_vit.preprocess_input(pixels[None], model)
    np.testing.assert_allclose(outputs, keras.ops.softmax(model(images)), atol=1e-6)


def test_five_channel_model_has_only_tensor_signature(tmp_path, skip_verification):
    model = tiny_model(input_shape=(8, 12, 5))
    export.check(model)
    assert list(tf.saved_model.load(export.saved_model(model, tmp_path)).signatures) == ["tensor"]


@pytest.mark.parametrize("activation", ["softmax", pytest.param("sigmoid", marks=pytest.mark.full)])
def test_model_activation_is_not_applied_twice(activation, tmp_path, skip_verification):
    model = tiny_model(classifier_activation=activation)
    loaded = tf.saved_model.load(export.saved_model(model, tmp_path, signatures=("tensor",)))
    images = random_images((2, *SHAPE))
    outputs = loaded.signatures["tensor"](images=tf.constant(images))["probabilities"]
    np.testing.assert_allclose(outputs, model(images), atol=1e-6)


def test_sigmoid_model_is_exported_with_sigmoid(tmp_path, skip_verification):
    """The model is loaded from a .keras file and nested in another model."""
    inner = tiny_model()
    set_logits_activation(inner, "sigmoid")
    inner.save(tmp_path / "model.keras")
    inner = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    model = keras.Sequential([keras.Input(inner.input_shape[1:]), inner])
    path = export.saved_model(model, tmp_path, class_names=NAMES, signatures=("tensor",))
    images = images_for(inner)
    outputs = tf.saved_model.load(path).signatures["tensor"](images=tf.constant(images))[
        "probabilities"
    ]
    np.testing.assert_allclose(outputs, keras.ops.sigmoid(model(images)), atol=1e-6)
    assert export.load_card(path)["activation"] == "sigmoid"
    assert export.has_model(path, model, NAMES)
    assert not export.has_model(path, model, NAMES[::-1])
    os.remove(os.path.join(path, "saved_model.pb"))  # as after an interrupted upload
    assert not export.has_model(path, model, NAMES)


@pytest.mark.parametrize(
    ("policy", "precision", "tolerance"),
    [
        ("mixed_bfloat16", "float32", 5e-2),
        pytest.param("float32", "bfloat16", 5e-2, marks=pytest.mark.full),
        pytest.param("mixed_bfloat16", "bfloat16", 1e-2, marks=pytest.mark.full),
    ],
)
def test_export_precision_is_independent_of_policy(
    policy, precision, tolerance, tmp_path, skip_verification
):
    keras.config.set_dtype_policy(policy)
    model = tiny_model()
    path = export.saved_model(model, tmp_path, precision=precision, signatures=("tensor",))
    images = random_images((2, *SHAPE))
    signature = tf.saved_model.load(path).signatures["tensor"]
    outputs = signature(images=tf.constant(images))["probabilities"]
    np.testing.assert_allclose(outputs, expected(model, images), atol=tolerance)
    if precision == "float32":  # a float32 model with the same weights has the same outputs
        keras.config.set_dtype_policy("float32")
        np.testing.assert_allclose(outputs, expected(tiny_model(), images), atol=1e-6)


EXPORT_SCRIPT = """
import sys
import numpy as np
import tensorflow as tf
if sys.argv[2] == "mirrored":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    scope = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()
else:
    import contextlib
    scope = contextlib.nullcontext()
import keras
import keras_vit
from keras_vit import export, inspection
with scope:
    model = keras.saving.load_model(sys.argv[1], compile=False)
print(export.saved_model(model, sys.argv[3], class_names=list("abcde")))
"""


@pytest.mark.full
@pytest.mark.parametrize(("kind", "backend"), [("mirrored", "tensorflow"), ("plain", "jax")])
def test_exports_from_mirrored_strategy_and_jax_match_model(kind, backend, exported, tmp_path):
    if backend == "jax":
        pytest.importorskip("jax", reason="jax is not installed")
    command = [
        sys.executable,
        "-c",
        EXPORT_SCRIPT,
        os.path.join(exported[0], "assets.extra/model.keras"),
        kind,
    ]
    done = subprocess.run(
        [*command, str(tmp_path / "model")],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    loaded = tf.saved_model.load(tmp_path / "model" / "1").signatures["serving_default"]
    outputs = loaded(image_bytes=tf.constant(FILES))["probabilities"]
    np.testing.assert_allclose(
        outputs, expected(exported[1], tf.stack([resized(file) for file in FILES])), atol=1e-5
    )


def test_card_describes_model(exported):
    path, model = exported
    card = json.loads(Path(path, "assets.extra/model_card.json").read_text(encoding="utf-8"))
    assert card["architecture"]["parameters"] == model.count_params()
    assert card["architecture"]["patch_size"] == 4
    assert card["architecture"]["image_shape"] == list(SHAPE)
    assert card["class_names"] == list(NAMES)
    assert card["preprocessing"]["model"]["resize"] == "stretch"
    assert card["preprocessing"]["max_megapixels"] == 50
    assert card["training"] == {"optimizer": {"name": "adamw"}}
    assert card["metrics"] == {"test/accuracy": 0.5}
    assert card["versions"]["keras"] == keras.version()
    assert card["versions"]["tensorflow"] == tf.__version__
    assert card["self_test"]["largest_differences"].keys() == set(export.SIGNATURES)
    assert (
        max(card["self_test"]["largest_differences"].values())
        < 1e-6
        < card["self_test"]["tolerance"]
    )
