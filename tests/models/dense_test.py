"""Tests of the heads for segmentation and depth."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.models.resizing import resize_bilinear

from ..shared import (
    GOLDEN,
    SIZES,
    assert_close,
    copy_model_folder,
    images_for,
    randomize_around_unit_norms,
    read_arrays,
    to_numpy,
)

FILES = GOLDEN / "dense"
# Golden files, and the names of their images and outputs.
CASES = (
    ("dpt_segmentation", "images", "logits"),
    ("dpt_segmentation", "images_resized", "logits_resized"),
    ("dpt_depth", "images", "predicted_depth"),
    ("dpt_dinov2", "images", "predicted_depth"),
    ("depth_anything_metric", "images", "predicted_depth"),
    ("depth_anything_metric", "images_wide", "predicted_depth_wide"),
)
SMALL = {
    **SIZES,
    "input_shape": (16, 24, 3),
    "num_layers": 4,
    "hidden_size": 16,
    "mlp_dim": 24,
}
BACKBONES = {
    "gap": {"classifier": "gap", "pool_norm": True},
    "registers": {"num_registers": 2, "position_embedding": "none", "rotary": {}},
    "distilled": {"distilled": True},
    "hybrid": {"patch_size": 1, "resnet_blocks": (1,)},
}


def segmenter(**arguments):
    return keras_vit.LinearSegmenter(classes=3, **SMALL, **arguments)


def golden_folder(case, folder):
    return copy_model_folder(case, folder, source=FILES)


def randomized(model):
    """Assigns random numbers to all weights. Variances stay positive."""
    randomize_around_unit_norms(model, 0.2)
    for weight in model.weights:
        if weight.path.endswith("moving_variance"):
            weight.assign(1 + keras.ops.abs(weight))
    return model


@pytest.mark.parametrize("case, images, expected", CASES)
def test_outputs_match_transformers(case, images, expected, tmp_path):
    arrays = read_arrays(FILES / f"{case}.io.npz")
    images = arrays[images]
    model = keras_vit.from_pretrained(golden_folder(case, tmp_path), input_shape=images.shape[1:])
    assert_close(model(images), arrays[expected])


@pytest.mark.one_backend
def test_saved_models_return_the_same(tmp_path):
    model = keras_vit.from_pretrained(golden_folder("dpt_segmentation", tmp_path))
    images = images_for(model)
    model.save(tmp_path / "saved.keras")
    checkpoints.save(model, tmp_path / "saved.npz")
    for loaded in (
        keras_vit.load_keras_file(tmp_path / "saved.keras"),
        keras_vit.from_pretrained(tmp_path / "saved.npz"),
    ):
        np.testing.assert_array_equal(loaded(images), model(images))


@pytest.mark.one_backend
@pytest.mark.parametrize("backbone", BACKBONES)
def test_linear_head_reads_normalized_patches_of_any_backbone(backbone):
    vit = randomized(keras_vit.VisionTransformer(**{**SMALL, **BACKBONES[backbone]}))
    model = keras_vit.LinearSegmenter.on(vit, classes=3, levels=(2, 4))
    randomized(model.head)
    images = images_for(vit)
    maps = keras_vit.features(vit, images, layers=[2, 4], tokens="patch", grid=True)
    gamma, beta, mean, variance = map(to_numpy, model.head.batch_norm.weights)
    x = (np.concatenate(maps, -1) - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    kernel, bias = map(to_numpy, model.head.classifier.weights)
    np.testing.assert_allclose(model(images), x @ kernel + bias, atol=1e-4)


@pytest.mark.one_backend
def test_head_of_the_backbone_is_not_used():
    head = {"representation_size": 8, "head_bias": -4.0, "classifier_activation": "softmax"}
    vit = keras_vit.VisionTransformer(**SMALL, **head)
    model = keras_vit.LinearSegmenter.on(vit, classes=3)
    assert not to_numpy(model(images_for(model))).any()


@pytest.mark.one_backend
def test_head_arguments_in_configs_of_earlier_versions_have_no_effect():
    model = segmenter(levels=range(1, 5))
    stored = {**model.get_config(), "head_bias": -4.0, "classifier_activation": "softmax"}
    assert keras_vit.LinearSegmenter.from_config(stored).get_config() == model.get_config()


@pytest.mark.one_backend
@pytest.mark.parametrize("changes", [{"input_shape": (32, 24, 3)}, {"pre_norm": True}], ids=str)
def test_arguments_that_need_other_weights_are_refused(changes):
    vit = keras_vit.VisionTransformer(**SMALL)
    with pytest.raises(ValueError, match="must not change the structure or the image size"):
        keras_vit.LinearSegmenter.on(vit, classes=3, **changes)


@pytest.mark.one_backend
def test_backbones_with_adapters_are_refused():
    vit = keras_vit.VisionTransformer(**SMALL)
    keras_vit.enable_lora(vit, 2, write=lambda line: None)
    with pytest.raises(ValueError, match="adapters cannot be copied"):
        keras_vit.LinearSegmenter.on(vit, classes=3)


def test_dense_model_shares_no_arrays_with_its_backbone():
    """On JAX, training donates the arrays of the model, so that others cannot read them."""
    vit = keras_vit.VisionTransformer(**SMALL)
    arrays = {id(variable.value) for variable in vit.variables}
    model = keras_vit.LinearSegmenter.on(vit, classes=3)
    assert arrays.isdisjoint(id(variable.value) for variable in model.variables)


@pytest.mark.one_backend
@pytest.mark.parametrize("backbone", ["gap", "registers", "hybrid"])
def test_dpt_reads_every_level_of_any_backbone(backbone):
    vit = keras_vit.VisionTransformer(**{**SMALL, **BACKBONES[backbone]})
    model = keras_vit.DensePredictionTransformer.on(
        vit,
        classes=3,
        level_channels=(4, 5, 6, 7),
        features=8,
        batch_norm=True,
        readout="ignore" if vit.class_token is None else "project",
    )
    randomized(model)
    images = images_for(model)
    logits = to_numpy(model(images))
    assert logits.shape == (2, 16 * vit.grid[0], 16 * vit.grid[1], 3)
    for layer in model.head.reassemble:
        kernel = layer.projection.kernel.numpy()
        layer.projection.kernel.assign(0.9 * kernel)
        assert np.abs(model(images) - logits).max() > 1e-6
        layer.projection.kernel.assign(kernel)


@pytest.mark.one_backend
def test_frozen_backbone_stays_frozen_in_a_file(tmp_path):
    model = segmenter()
    keras_vit.freeze(model, "head", write=lambda line: None)
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.load_keras_file(tmp_path / "model.keras")
    names = [variable.name for variable in loaded.trainable_variables]
    assert sorted(names) == ["beta", "bias", "gamma", "kernel"]


@pytest.mark.one_backend
def test_backbone_weights_load_with_a_new_head(tmp_path):
    vit = randomized(keras_vit.VisionTransformer(classes=7, **SMALL))
    checkpoints.save(vit, tmp_path / "vit.npz")
    model = randomized(segmenter())
    checkpoints.load(model, tmp_path / "vit.npz", head="new")
    np.testing.assert_array_equal(model.blocks[3].weights[0], vit.blocks[3].weights[0])
    assert not to_numpy(model.head.classifier.kernel).any()
    assert not to_numpy(model.head.batch_norm.moving_mean).any()


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"levels": (1, 2)}, "end with the last block"),
        ({"levels": (3, 2, 4)}, "in order"),
        ({"levels": 4}, "block numbers from 1"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"levels": (1, 4)}, "four block numbers"),
        ({"readout": "sum"}, "`readout` must be one of"),
        ({"representation_size": 8}, "representation_size=8"),
        ({"head_bias": -4.0}, "head_bias=-4.0"),
        ({"classifier_activation": "softmax"}, "classifier_activation='softmax'"),
        ({"head_dropout": 1.0}, "head_dropout=1.0"),
        ({"level_channels": (4, 4, 4, 0)}, "four positive integers"),
        ({"readout": "add", "classifier": "gap"}, "without a class token"),
        ({"predicts": "depth", "classes": 3}, "must be 1 for depth"),
        ({"max_depth": 10.0}, "max_depth"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.DensePredictionTransformer(**{**SMALL, "classes": 2, **arguments})


@pytest.mark.one_backend
def test_linear_head_refuses_a_dropout_rate_of_one():
    with pytest.raises(ValueError, match="head_dropout=1"):
        segmenter(head_dropout=1)


@pytest.mark.one_backend
def test_files_for_other_levels_are_refused(tmp_path):
    folder = golden_folder("dpt_depth", tmp_path)
    arguments = {**keras_vit.from_pretrained(folder).arguments, "levels": (1, 2, 3, 5)}
    model = keras_vit.DensePredictionTransformer(**arguments)
    with pytest.raises(ValueError, match="levels"):
        checkpoints.load(model, folder)


@pytest.mark.one_backend
def test_folders_without_a_config_are_refused(tmp_path):
    folder = golden_folder("dpt_depth", tmp_path)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="require their config.json"):
        keras_vit.from_pretrained(folder, num_heads=2)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("align_corners", "rows", "columns"),
    [
        (True, np.linspace(0, 4, 9), np.linspace(0, 3, 7)),
        # Pixels beyond the outer centers repeat them.
        (False, np.clip(np.arange(10) / 2 - 0.25, 0, 4), np.clip(np.arange(8) / 2 - 0.25, 0, 3)),
    ],
    ids=["aligned corners", "aligned edges"],
)
def test_resizing_keeps_linear_maps(align_corners, rows, columns):
    ramp = np.arange(5.0)[:, None] + 10 * np.arange(4.0)
    image = keras.ops.convert_to_tensor(ramp[None, :, :, None], "float32")
    resized = resize_bilinear(image, (len(rows), len(columns)), align_corners)
    expected = rows[:, None] + 10 * columns
    np.testing.assert_allclose(resized[0, :, :, 0], expected, atol=1e-5)
