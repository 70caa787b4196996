"""Saved models load unchanged, in the same process and in another process."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit

from ..shared import images_for, randomize, to_numpy

TINY = {
    "input_shape": (32, 64, 3),
    "patch_size": 16,
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
# Models by name: the dtype policy, and the arguments in addition to `TINY`.
MODELS = {
    "vit": ("mixed_bfloat16", {"classifier": "map"}),
    "hybrid": ("float32", {"patch_size": 4, "resnet_blocks": (1, 1)}),
}

# Loads the model of each folder, and compares its outputs with the saved outputs.
FRESH_PROCESS = """
import sys
import keras, numpy as np, keras_vit
for folder in sys.argv[1:]:
    model = keras.models.load_model(folder + "/model.keras")
    assert type(model) is keras_vit.VisionTransformer
    with np.load(folder + "/io.npz", allow_pickle=False) as file:
        outputs = keras.ops.cast(model(file["images"]), "float32")
        np.testing.assert_array_equal(outputs, file["outputs"], err_msg=folder)
    print(folder)
"""


@pytest.mark.full
@pytest.mark.one_backend
def test_models_load_bit_equal_in_a_fresh_process(tmp_path):
    folders = []
    for name, (policy, arguments) in MODELS.items():
        model = keras_vit.VisionTransformer(**{**TINY, **arguments}, dtype=policy)
        randomize(model, 0.3)
        folder = tmp_path / name
        folder.mkdir()
        model.save(folder / "model.keras")
        images = images_for(model)
        np.savez(folder / "io.npz", images=images, outputs=to_numpy(model(images)))
        folders.append(str(folder))
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, *folders],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == folders


BIT = {"depth": 8, "width": 32, "input_shape": (32, 32, 3), "classes": 5}
# Constructors and arguments.
MODELS_TO_REBUILD = {
    "plain": (keras_vit.VisionTransformer, {**TINY, "classifier_activation": "softmax"}),
    "masked": (keras_vit.MaskedPatchVisionTransformer, {**TINY, "classifier": "token_unpooled"}),
    "axial": (keras_vit.AxialVisionTransformer, TINY),
    "bit": (keras_vit.BiTResNet, BIT),
    "stem": (keras_vit.BiTResNet, {**BIT, "version": 1, "include_top": False}),
}


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", MODELS_TO_REBUILD)
def test_config_round_trip_restores_model_and_policy(kind):
    constructor, arguments = MODELS_TO_REBUILD[kind]
    model = constructor(**arguments, dtype="mixed_bfloat16")
    model.preprocessing = {
        "mean": [1, 2, 3],
        "std": [4, 5, 6],
        "resize": "stretch",
        "crop_fraction": 0.5,
    }
    model.layers[2].trainable = False
    model.input_preprocessing.logits_activation = "sigmoid"
    config = json.loads(json.dumps(model.get_config()))
    again = constructor.from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config
    assert again.preprocessing == model.preprocessing
    assert again.input_preprocessing.logits_activation == "sigmoid"
    for ours, theirs in zip(again.layers, model.layers, strict=True):
        assert (ours.name, ours.trainable) == (theirs.name, theirs.trainable)
        assert ours.compute_dtype == theirs.compute_dtype
    again.set_weights(model.get_weights())
    images = images_for(model, 1)
    for ours, theirs in zip(keras.tree.flatten(again(images)), keras.tree.flatten(model(images))):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


@pytest.mark.one_backend
def test_config_may_name_a_custom_activation():
    def double(logits):
        return 2 * logits

    config = keras_vit.VisionTransformer(**TINY, classifier_activation=double).get_config()
    model = keras_vit.VisionTransformer.from_config(config, custom_objects={"double": double})
    assert model.head.activation is double


@pytest.mark.one_backend
@pytest.mark.parametrize("base", [keras_vit.VisionTransformer, keras_vit.LinearSegmenter])
def test_subclass_may_have_a_config_of_its_own(base):
    class OneSize(base):
        def __init__(self, num_heads):
            super().__init__(**{**TINY, "representation_size": 0, "num_heads": num_heads})

    assert OneSize.from_config({"num_heads": 4}).num_heads == 4


@pytest.mark.one_backend
def test_version_0_1_file_is_rejected_but_its_weights_load(tmp_path):
    """Version 0.1.0 saved models as plain `keras.Model` objects."""
    model = randomize(keras_vit.VisionTransformer(**TINY), 0.3)
    keras.Model(model.inputs[0], model.outputs[0], name=model.name).save(tmp_path / "old.keras")
    old = keras_vit.load_keras_file(tmp_path / "old.keras")
    with pytest.raises(ValueError, match="file of version 0.1.0"):
        keras_vit.features(old, np.zeros((1, *model.image_shape), "float32"))
    keras_vit.checkpoints.save(old, tmp_path / "weights.npz")
    again = keras_vit.from_pretrained(tmp_path / "weights.npz", source_grid=model.grid)
    images = images_for(model, 1)
    np.testing.assert_array_equal(again(images), model(images))


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore:.*quantize")
def test_quantize_is_refused_and_changes_nothing():
    model = keras_vit.VisionTransformer(**TINY, head_bias=1.0)
    images = images_for(model)
    before = to_numpy(model(images))
    for refused in (model, keras.Sequential([keras.Input(model.image_shape), model])):
        with pytest.raises(ValueError, match="do not support `quantize`"):
            refused.quantize("int8")
    np.testing.assert_array_equal(model(images), before)


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore:.*quantize")
def test_model_with_a_quantized_layer_is_not_saved():
    model = keras_vit.VisionTransformer(**TINY)
    model.quantize("int8", filters="head")
    with pytest.raises(ValueError, match="do not support `quantize`"):
        model.get_config()
