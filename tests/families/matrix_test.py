"""Tests of the library's features on tiny models of most families, loaded from golden files."""

import importlib.util

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit import (
    data,
    evaluation,
    export,
    families,
    inspection,
    optimizers,
    recipes,
    tasks,
    training,
)

from ..shared import images_for, randomize
from .golden_cases import write_case

CASES = (
    "siglip",
    "clip",
    "timm_deit_distilled",
    "timm_deit3",
    "timm_eva02_separate",
    "dinov2",
    "dinov2_swiglu",
    "dinov2_registers",
    "dinov3",
    "mae",
    "ijepa",
    "dino",
)
tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exports need TensorFlow"
)


@pytest.fixture(params=CASES)
def folder(request, tmp_path):
    """Returns a folder with the weights of a case and its config.json, if it has one."""
    return write_case(request.param, tmp_path / "golden")


def load_with_new_head(folder, **arguments):
    return keras_vit.from_pretrained(
        folder, head="new", include_top=True, classes=10, num_heads=3, **arguments
    )


@pytest.fixture
def model(folder):
    """Returns a model with a random head of 10 classes."""
    model = load_with_new_head(folder)
    randomize(model.head, 0.3)
    return model


@pytest.fixture
def images(model):
    return images_for(model, seed=1)


def test_model_has_features(model, images):
    tokens = keras_vit.features(model, images, tokens="all")
    assert tokens.shape == (2, model.num_tokens, 24)
    if model.class_token is not None:
        np.testing.assert_allclose(keras_vit.features(model, images), tokens[:, 0], atol=1e-5)
    grids = keras_vit.features(model, images, layers=[1, 3], tokens="patch", grid=True)
    assert [grid.shape for grid in grids] == [(2, *model.grid, 24)] * 2
    pooled = keras_vit.features(model, images, tokens="pooled")
    np.testing.assert_allclose(model.head(pooled), model(images), atol=1e-5)


def test_model_has_attention_scores_and_maps(model, images):
    (scores,) = inspection.attention_scores(model, images, layers=[3])
    assert scores.shape == (2, 3, model.num_tokens, model.num_tokens)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    assert inspection.attention_maps(model, images).shape[:3] == images.shape[:3]


@pytest.mark.parametrize("patch", [None, (0, 1)], ids=str)
def test_model_has_token_attention(patch, model, images):
    rollout, attention = inspection.token_attention(model, images, patch)
    assert rollout.shape == attention.shape == (2, *model.grid)


def test_flops_exceed_those_of_the_projections(model):
    # Three blocks have four projections each. The last block projects fewer queries, so compare
    # with half of the operations.
    multiply_accumulates = 3 * 4 * 24**2 * model.num_tokens
    assert keras_vit.flops(model) > 2 * multiply_accumulates / 2


def test_model_supports_backbones(model, images):
    stride = model.patch_stride
    maps = keras_vit.backbone(model, layers=(1, 3), strides=(stride, 2 * stride))(images)
    assert maps[0].shape == (2, *model.grid, 24)


def test_model_supports_layer_decay(model):
    optimizer = optimizers.get("adamw", 0.1, layer_decay=0.5)
    optimizer.build(model.trainable_variables)
    paths = [variable.path for variable in model.trainable_variables]
    multipliers = dict(zip(paths, optimizer.layerwise_multipliers))
    assert multipliers[model.head.kernel.path] == 1
    assert multipliers[model.patch_encoder.kernel.path] == 0.5**4  # below three blocks


def test_model_supports_freezing(model):
    keras_vit.freeze(model, "head", write=lambda line: None)
    layers = {variable.path.split("/")[0] for variable in model.trainable_variables}
    assert layers == {"head"}


def fit(model, images, learning_rate, epochs=1):
    """Trains a model on two labels and returns the losses."""
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(learning_rate), loss)
    labels = np.eye(10)[[1, 2]]
    return model.fit(images, labels, epochs=epochs, verbose=0).history["loss"]


@pytest.mark.full
def test_remat_keeps_the_losses(folder, model, images):
    with_remat = load_with_new_head(folder, remat=True)
    with_remat.set_weights(model.get_weights())
    expected = fit(model, images, 0.01, epochs=2)
    np.testing.assert_allclose(fit(with_remat, images, 0.01, epochs=2), expected, rtol=1e-4)


@pytest.mark.full
def test_lora_starts_from_the_model_and_trains(model, images):
    before = np.array(model(images))
    keras_vit.enable_lora(model, 2, write=lambda line: None)
    np.testing.assert_allclose(model(images), before, atol=1e-5)
    fit(model, images, 0.1)
    assert np.abs(np.array(model(images)) - before).max() > 1e-3


def run_config(model, **fields):
    """Returns the config of a run that trains a model like `model` on digits."""
    names = families.model_fields("VisionTransformer").keys()
    names -= {"classes", "include_top", "input_shape", "representation_size"}
    arguments = {
        name: value
        for name, value in model.arguments.items()
        if name in names and value is not None
    }
    config = ConfigDict(
        recipes.defaults(
            **families.model_config("VisionTransformer", **arguments),
            data=data.defaults(name="digits"),
            **fields,
        )
    )
    config.data.image_size = model.image_shape[0]
    return config


@pytest.mark.full
def test_run_starts_from_weights_and_is_evaluated(folder, tmp_path):
    config = run_config(
        keras_vit.from_pretrained(folder, num_heads=3),
        weights=str(folder),
        batch_size=64,
        total_steps=2,
        log_every_steps=1,
        optimizer={"name": "adamw", "layer_decay": 0.5},
        schedule={"base": 1e-3},
    )
    workdir = training.Workdir(tmp_path / "run", config.to_dict())
    lines = []
    result = training.run(config, workdir, write=lines.append)
    (report,) = [line for line in lines if "arrays loaded" in line]
    assert "newly initialized: head/kernel" in report
    assert any(line.startswith("step 2/2") for line in lines)
    metrics = evaluation.evaluate(result.model, ["fewshot", "knn", "linear_probe"], result.inputs)
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["knn/accuracy"] > 0.2  # chance is 0.1


@tensorflow_only
@pytest.mark.full
def test_exports_match_the_model(model, images, tmp_path):
    model.preprocessing = {
        "mean": [127.5] * 3,
        "std": [127.5] * 3,
        "resize": "stretch",
        "crop_fraction": 1.0,
    }
    export.saved_model(model, str(tmp_path / "saved"), version=1, signatures=("tensor",))
    np.testing.assert_array_equal(export.load(tmp_path / "saved/1")(images), model(images))
    assert export.litert(model, tmp_path / "model.tflite").largest_difference < 1e-4
    if all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime"))):
        assert export.onnx(model, tmp_path / "model.onnx").largest_difference < 1e-4


@tensorflow_only
@pytest.mark.full
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no libtpu: pip install -e '.[cpu,aot]'"
)
def test_tpu_check_compiles_a_step(model):
    from keras_vit import tpu

    config = run_config(model, batch_size=32, total_steps=20, optimizer={"name": "adamw"})
    check = tpu.check(tasks.get(config), config, 32, "v3:2x2")
    assert check.compiles
    assert not check.error
    assert check.model_flops > 0
