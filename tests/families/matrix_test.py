"""Tests of the library's features on tiny models of most families, loaded from golden files."""

import importlib.util
import shutil

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit import data, evaluation, families, inspection, optimizers, recipes, tasks, training

from ..shared import FAMILY_FILES, images_for, randomize

CASES = (
    *(
        "siglip",
        "clip",
        "timm_deit_distilled",
        "timm_deit3",
        "timm_eva02_separate",
        "dinov2",
        "dinov2_swiglu",
    ),
    *("dinov2_registers", "dinov3", "mae", "ijepa", "dino"),
)
tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exports need TensorFlow"
)


@pytest.fixture(params=CASES)
def folder(request, tmp_path):
    """Returns a folder with the weights of a golden case and its config.json, if it has one."""
    (tmp_path / "from").mkdir()
    shutil.copy(
        FAMILY_FILES / f"{request.param}.safetensors", tmp_path / "from" / "model.safetensors"
    )
    if (FAMILY_FILES / f"{request.param}.config.json").exists():
        shutil.copy(
            FAMILY_FILES / f"{request.param}.config.json", tmp_path / "from" / "config.json"
        )
    return tmp_path / "from"


@pytest.fixture
def model(folder):
    """Returns a model with a new head of 10 classes."""
    model = keras_vit.from_pretrained(folder, head="new", include_top=True, classes=10, num_heads=3)
    randomize(model.head, 0.3)
    return model


@pytest.fixture
def images(model):
    return images_for(model, seed=1)


def test_model_supports_features_attention_and_flops(model, images):
    tokens = keras_vit.features(model, images, tokens="all")
    assert tokens.shape == (2, model.num_tokens, 24)
    grids = keras_vit.features(model, images, layers=[1, 3], tokens="patch", grid=True)
    assert [grid.shape for grid in grids] == [(2, *model.grid, 24)] * 2
    pooled = keras_vit.features(model, images, tokens="pooled")
    np.testing.assert_allclose(model.head(pooled), model(images), atol=1e-5)
    if model.class_token is not None:
        np.testing.assert_allclose(keras_vit.features(model, images), tokens[:, 0], atol=1e-5)
    (scores,) = inspection.attention_scores(model, images, layers=[3])
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    assert inspection.attention_maps(model, images).shape[:3] == images.shape[:3]
    for rollout, attention in [
        inspection.token_attention(model, images),
        inspection.token_attention(model, images, (0, 1)),
    ]:
        assert rollout.shape == attention.shape == (2, *model.grid)
    patches = np.prod(model.grid)
    prefix = model.num_prefix_tokens
    assert scores.shape == (2, 3, patches + prefix, patches + prefix)
    # Half of the multiply-accumulates of all attention projections.
    block = 3 * (4 * 24**2 * (patches + prefix)) / 2
    assert keras_vit.flops(model) > 2 * block


def test_model_supports_backbone_freezing_and_layer_decay(model, images):
    stride = model.patch_stride
    maps = keras_vit.backbone(model, layers=(1, 3), strides=(stride, 2 * stride))(images)
    assert maps[0].shape == (2, *model.grid, 24)
    rates = optimizers.get("adamw", 0.1, layer_decay=0.5)
    rates.build(model.trainable_variables)
    named = dict(zip([v.path for v in model.trainable_variables], rates.layerwise_multipliers))
    assert named[model.head.kernel.path] == 1 and named[model.patch_encoder.kernel.path] == 0.5**4
    keras_vit.freeze(model, "head", write=lambda line: None)
    assert {v.path.split("/")[0] for v in model.trainable_variables} == {"head"}


@pytest.mark.full
def test_model_trains_with_remat_and_lora(folder, model, images):
    labels = np.eye(10)[[1, 2]]
    again = keras_vit.from_pretrained(
        folder, head="new", include_top=True, classes=10, num_heads=3, remat=True
    )
    again.set_weights(model.get_weights())
    losses = []
    for one in (model, again):
        one.compile(
            keras.optimizers.SGD(0.01), keras.losses.CategoricalCrossentropy(from_logits=True)
        )
        losses.append(one.fit(images, labels, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    before = np.array(model(images))
    keras_vit.enable_lora(model, 2, write=lambda line: None)
    np.testing.assert_allclose(model(images), before, atol=1e-5)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.CategoricalCrossentropy(from_logits=True))
    model.fit(images, labels, verbose=0)
    assert np.abs(np.array(model(images)) - before).max() > 0


@pytest.mark.full
def test_run_starts_from_weights_and_is_evaluated(folder, tmp_path):
    config = ConfigDict(
        recipes.defaults(
            **families.model_config(
                "VisionTransformer",
                patch_size=8,
                num_layers=1,
                hidden_size=8,
                mlp_dim=8,
                num_heads=1,
            ),
            batch_size=64,
            total_steps=2,
            log_every_steps=1,
            data=data.defaults(name="digits"),
            optimizer={"name": "adamw", "layer_decay": 0.5},
            schedule={"base": 1e-3},
        )
    )
    source = keras_vit.from_pretrained(folder, num_heads=3)
    for name, value in source.arguments.items():
        if name in config.model and name not in (
            "classes",
            "include_top",
            "input_shape",
            "representation_size",
        ):
            with config.unlocked():
                config.model[name] = value if value is not None else type(config.model[name])()
    config.weights = str(folder)
    config.data.image_size = source.image_shape[0]
    lines = []
    result = training.run(
        config, training.Workdir(tmp_path / "run", config.to_dict()), write=lines.append
    )
    report = next(line for line in lines if "arrays loaded" in line)
    assert "newly initialized: head/kernel" in report and any(
        line.startswith("step 2/2") for line in lines
    )
    metrics = evaluation.evaluate(result.model, ["fewshot", "knn", "linear_probe"], result.inputs)
    assert all(np.isfinite(value) for value in metrics.values()) and metrics["knn/accuracy"] > 0.2


@tensorflow_only
@pytest.mark.full
def test_exports_match_the_model(model, tmp_path):
    from keras_vit import export

    model.preprocessing = {
        "mean": [127.5] * 3,
        "std": [127.5] * 3,
        "resize": "stretch",
        "crop_fraction": 1.0,
    }
    export.saved_model(model, str(tmp_path / "saved"), version=1, signatures=("tensor",))
    images = images_for(model)
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

    fields = families.model_fields("VisionTransformer")
    arguments = {
        name: value
        for name, value in model.arguments.items()
        if value is not None and name in fields
    }
    config = ConfigDict(
        recipes.defaults(
            batch_size=32,
            total_steps=20,
            data=data.defaults(name="digits"),
            optimizer={"name": "adamw"},
        )
    )
    with config.unlocked():
        config.architecture = "VisionTransformer"
        config.model = {**fields, **arguments}
        config.data.image_size = model.image_shape[0]
    check = tpu.check(tasks.get(config), config, 32, "v3:2x2")
    assert check.compiles and not check.error and check.model_flops > 0
