"""Saved models load unchanged, in the same process and in another process."""

import inspect
import itertools
import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import layers
from keras_vit.models.validation import CLASSIFIERS

from ..shared import images_for, randomize

TINY = {
    "input_shape": (32, 64, 3),
    "num_layers": 2,
    "hidden_size": 16,
    "mlp_dim": 24,
    "num_heads": 2,
    "classes": 5,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "stochastic_depth": 0.1,
    "representation_size": 6,
}
STEMS = {"vit": {"patch_size": 16}, "hybrid": {"patch_size": 4, "resnet_blocks": (1, 1)}}
POLICIES = ("float32", "mixed_bfloat16")
MODELS = list(itertools.product(STEMS, POLICIES, CLASSIFIERS))
if keras.backend.backend() == "jax":  # test only two models, to save time
    MODELS = [("vit", "mixed_bfloat16", "map"), ("hybrid", "float32", "token")]

# For each folder, loads the .keras file, rebuilds the model from the config and the weights file,
# and compares the outputs of both models with the saved outputs.
FRESH_PROCESS = """
import json, sys
import keras, numpy as np, keras_vit
for folder in json.loads(sys.argv[1]):
    with np.load(folder + "/io.npz", allow_pickle=False) as file:
        saved = dict(file)
    whole = keras.models.load_model(folder + "/model.keras")
    with open(folder + "/config.json") as file:
        rebuilt = keras.models.model_from_json(file.read())
    rebuilt.load_weights(folder + "/model.weights.h5")
    for model in (whole, rebuilt):
        outputs = np.asarray(model.predict(saved["images"], verbose=0), "float32")
        assert np.array_equal(outputs, saved["outputs"]), (folder, np.abs(outputs - saved["outputs"]).max())
    assert type(whole) is type(rebuilt) is keras_vit.VisionTransformer and whole.grid == rebuilt.grid
    assert keras.models.clone_model(whole).count_params() == whole.count_params()
    print(folder)
"""


@pytest.mark.full
@pytest.mark.one_backend
def test_models_load_bit_equal_in_a_fresh_process(tmp_path):
    folders = []
    random = np.random.default_rng(0)
    for stem, policy, classifier in MODELS:
        keras.config.set_dtype_policy(policy)
        model = keras_vit.VisionTransformer(**TINY, **STEMS[stem], classifier=classifier)
        for weight in model.weights:
            weight.assign(random.normal(size=weight.shape) * 0.3)
        folder = tmp_path / f"{stem}-{policy}-{classifier}"
        folder.mkdir()
        model.save(folder / "model.keras")
        model.save_weights(folder / "model.weights.h5")
        (folder / "config.json").write_text(model.to_json())
        images = random.uniform(-1, 1, (2, *TINY["input_shape"])).astype("float32")
        outputs = np.asarray(model.predict(images, verbose=0), "float32")
        np.savez(folder / "io.npz", images=images, outputs=outputs)
        folders.append(str(folder))
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, json.dumps(folders)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == folders


@pytest.mark.parametrize(
    "layer",
    [
        layers.Patches(4),
        layers.PatchEncoder(8),
        layers.ClassToken(),
        layers.PositionEmbedding((2, 3)),
        layers.TransformerBlock(
            2, 8, dropout=0.1, attention_dropout=0.2, stochastic_depth=0.3, first_token_only=True
        ),
        layers.ResNetStem((1, 2), width=32),
        layers.InputPreprocessing(),
        layers.SinCosPositionEmbedding((2, 3)),
        layers.AttentionPooling(2, 8, exact_gelu=True),
        layers.PreActivationResNet((1, 2), width=32),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layer_configs_match_their_constructors(layer):
    # Ignore the arguments of `keras.layers.Layer`, which differ between Keras versions.
    keras_own = {"args", "kwargs", "activity_regularizer", "autocast", "name", "trainable", "dtype"}
    config = layer.get_config()
    assert {"name", "trainable", "dtype"} <= set(config)
    assert set(config) - keras_own == inspect.signature(type(layer)).parameters.keys() - keras_own
    assert type(layer).from_config(config).get_config() == config
    assert json.loads(json.dumps(config)) is not None


# Keras 3.10 warns if a loaded model with one input is not called with a list.
@pytest.mark.filterwarnings("ignore:The structure of `inputs`")
def test_nested_model_saves_and_loads(tmp_path):
    images = keras.Input((32, 64, 3))
    features = keras_vit.VisionTransformer(**TINY, patch_size=16, include_top=False)
    model = keras.Model(images, keras.layers.Dense(3)(features(images)))
    model.save(tmp_path / "nested.keras")
    x = np.random.default_rng(0).normal(size=(1, 32, 64, 3)).astype("float32")
    again = keras.models.load_model(tmp_path / "nested.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


MODELS_TO_REBUILD = {
    "plain": lambda **k: keras_vit.VisionTransformer(
        **TINY, patch_size=16, classifier_activation="softmax", **k
    ),
    "masked": lambda **k: keras_vit.MaskedPatchVisionTransformer(
        **TINY, patch_size=16, classifier="token_unpooled", **k
    ),
    "layers": lambda **k: keras_vit.VisionTransformer(
        **TINY, patch_size=16, position_embedding_at="every_layer", **k
    ),
    "axial": lambda **k: keras_vit.AxialVisionTransformer(**TINY, patch_size=16, **k),
    "bit": lambda **k: keras_vit.BiTResNet(
        depth=8, width=32, input_shape=(32, 32, 3), classes=5, **k
    ),
    "stem": lambda **k: keras_vit.BiTResNet(
        depth=8, width=32, version=1, input_shape=(32, 32, 3), include_top=False, **k
    ),
}


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", MODELS_TO_REBUILD)
def test_config_round_trip_restores_model_and_policy(kind):
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = MODELS_TO_REBUILD[kind]()
    model.preprocessing = {
        "mean": [1, 2, 3],
        "std": [4, 5, 6],
        "resize": "stretch",
        "crop_fraction": 0.5,
    }
    model.layers[2].trainable = False
    model.input_preprocessing.logits_activation = "sigmoid"
    keras.config.set_dtype_policy("float32")
    config = json.loads(json.dumps(model.get_config()))
    again = type(model).from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config
    assert (
        dict(again.arguments) == dict(model.arguments)
        and again.preprocessing == model.preprocessing
    )
    assert again.input_preprocessing.logits_activation == "sigmoid"
    for ours, theirs in zip(again.layers[1:], model.layers[1:]):
        assert (ours.name, ours.compute_dtype, ours.trainable) == (
            theirs.name,
            theirs.compute_dtype,
            theirs.trainable,
        )
    again.set_weights(model.get_weights())
    images = images_for(model, 1)
    for ours, theirs in zip(keras.tree.flatten(again(images)), keras.tree.flatten(model(images))):
        np.testing.assert_array_equal(
            keras.ops.cast(ours, "float32"), keras.ops.cast(theirs, "float32")
        )
    assert MODELS_TO_REBUILD[kind](dtype="mixed_bfloat16").compute_dtype == "bfloat16"


@pytest.mark.one_backend
def test_version_0_1_file_is_rejected_but_its_weights_load(tmp_path):
    """Version 0.1.0 saved models as plain `keras.Model` objects."""
    model = keras_vit.VisionTransformer(**TINY, patch_size=16)
    randomize(model, 0.3)
    keras.Model(model.inputs[0], model.outputs[0], name=model.name).save(tmp_path / "old.keras")
    old = keras_vit.load_keras_file(tmp_path / "old.keras")
    with pytest.raises(
        ValueError,
        match="file of version 0.1.0",
    ):
        keras_vit.features(old, np.zeros((1, *model.image_shape), "float32"))
    keras_vit.checkpoints.save(old, tmp_path / "weights.npz")
    again = keras_vit.from_pretrained(tmp_path / "weights.npz", source_grid=model.grid)
    images = images_for(model, 1)
    np.testing.assert_array_equal(again(images), model(images))


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore:.*quantize")
def test_quantize_is_refused_before_saving(tmp_path):
    model = keras_vit.VisionTransformer(**TINY, patch_size=16)
    images = images_for(model)
    before = np.array(model(images))
    with pytest.raises(ValueError, match="do not support `quantize`"):
        model.quantize("int8")
    np.testing.assert_array_equal(model(images), before)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(images), before)
    with pytest.raises(ValueError, match="do not support `quantize`"):
        keras.Sequential([keras.Input(model.image_shape), model]).quantize("int8")
    model = keras_vit.VisionTransformer(**TINY, patch_size=16)
    model.quantize("int8", filters="head")
    with pytest.raises(ValueError, match="do not support `quantize`"):
        model.get_config()
