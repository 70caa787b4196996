"""Tests of the heads for segmentation and depth."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.models.resizing import resize_bilinear

from ..shared import GOLDEN, SIZES, copy_model_folder, images_for, to_numpy

FILES = GOLDEN / "dense"
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
    "token": {},
    "gap": {"classifier": "gap"},
    "map": {"classifier": "map"},
    "registers": {"num_registers": 2, "layer_scale": 1e-5, "class_token_position": False},
    "distilled": {"distilled": True},
    "pool_norm": {"classifier": "token_gap", "pool_norm": True},
    "rotary": {"position_embedding": "none", "rotary": {}},
    "hybrid": {"patch_size": 1, "resnet_blocks": (1,)},
}


def golden_folder(case, folder):
    return copy_model_folder(case, folder, source=FILES)


def randomized(model):
    """Assigns random numbers to all weights. Variances and scales stay positive."""
    random = np.random.default_rng(0)
    for weight in model.weights:
        if weight.path.endswith(("moving_variance", "gamma", "scale")):
            weight.assign(random.uniform(0.5, 1.5, weight.shape))
        else:
            weight.assign(random.normal(0, 0.2, weight.shape))
    return model


def output(model, images):
    return to_numpy(model(images))


@pytest.mark.parametrize("case, images, expected", CASES)
def test_outputs_match_transformers(case, images, expected, tmp_path):
    with np.load(FILES / f"{case}.io.npz") as io:
        images, expected = io[images], io[expected]
    model = keras_vit.from_pretrained(golden_folder(case, tmp_path), input_shape=images.shape[1:])
    outputs = output(model, images)
    assert outputs.dtype == "float32" and outputs.shape == (len(images), *model.output_shape[1:])
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.one_backend
@pytest.mark.parametrize("suffix", ["keras", "npz"])
def test_saved_models_return_the_same(suffix, tmp_path):
    model = keras_vit.from_pretrained(golden_folder("dpt_segmentation", tmp_path))
    path = tmp_path / f"saved.{suffix}"
    if suffix == "keras":
        model.save(path)
        loaded = keras_vit.load_keras_file(path)
    else:
        checkpoints.save(model, path)
        loaded = keras_vit.from_pretrained(path)
    assert loaded.levels == (1, 2, 4, 5) and loaded.predicts == "segmentation"
    np.testing.assert_array_equal(
        output(loaded, images_for(model)), output(model, images_for(model))
    )


@pytest.mark.one_backend
@pytest.mark.parametrize("backbone", BACKBONES)
def test_linear_head_reads_normalized_patches_of_any_backbone(backbone):
    vit = randomized(keras_vit.VisionTransformer(**{**SMALL, **BACKBONES[backbone]}))
    model = keras_vit.LinearSegmenter.on(vit, classes=3, levels=(2, 4))
    head = model.head
    for weight in head.weights:
        weight.assign(np.random.default_rng(2).uniform(0.5, 2, weight.shape))
    images = images_for(vit)
    maps = keras_vit.features(vit, images, layers=[2, 4], tokens="patch", grid=True)
    norm = head.batch_norm
    deviation = np.sqrt(to_numpy(norm.moving_variance) + 1e-5)
    x = (np.concatenate(maps, -1) - to_numpy(norm.moving_mean)) / deviation
    x = x * to_numpy(norm.gamma) + to_numpy(norm.beta)
    kernel, bias = map(to_numpy, head.classifier.weights)
    np.testing.assert_allclose(output(model, images), x @ kernel + bias, atol=1e-4)


@pytest.mark.one_backend
@pytest.mark.parametrize("backbone", BACKBONES)
def test_dpt_sits_on_any_backbone(backbone):
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
    logits = output(model, images)
    assert logits.shape == (2, 16 * vit.grid[0], 16 * vit.grid[1], 3)
    # Each level changes the output.
    for block in model.blocks:
        before = block.get_weights()
        block.set_weights([0.9 * weight for weight in before])
        assert np.abs(output(model, images) - logits).max() > 1e-6
        block.set_weights(before)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("readout", "reads_class_token"), [("ignore", False), ("add", True), ("project", True)]
)
def test_readouts_read_the_class_token(readout, reads_class_token):
    model = keras_vit.DensePredictionTransformer(
        readout=readout, classes=3, level_channels=(4,) * 4, features=8, **SMALL
    )
    assert output(model, images_for(model)).shape == (2, 64, 96, 3)
    levels = [np.random.default_rng(i).normal(size=(2, 25, 16)) for i in range(4)]
    before = to_numpy(model.head(levels))
    for tokens in levels:
        tokens[:, 0] += 1
    is_changed = (to_numpy(model.head(levels)) != before).any()
    assert is_changed == reads_class_token


@pytest.mark.one_backend
def test_frozen_backbone_stays_frozen_in_a_file(tmp_path):
    model = keras_vit.LinearSegmenter(classes=3, **SMALL)
    keras_vit.freeze(model, "head", write=lambda line: None)
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.load_keras_file(tmp_path / "model.keras")
    names = [variable.name for variable in loaded.trainable_variables]
    assert sorted(names) == ["beta", "bias", "gamma", "kernel"]


@pytest.mark.one_backend
def test_backbone_weights_load_with_a_new_head(tmp_path):
    vit = randomized(keras_vit.VisionTransformer(classes=7, **SMALL))
    checkpoints.save(vit, tmp_path / "vit.npz")
    model = randomized(keras_vit.LinearSegmenter(classes=3, **SMALL))
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
        ({"levels": (1, 4)}, "four block numbers"),
        ({"readout": "add", "classifier": "gap"}, "without a class token"),
        ({"readout": "sum"}, "readout"),
        ({"predicts": "depth", "classes": 3}, "must be 1 for depth"),
        ({"max_depth": 10.0}, "max_depth"),
        ({"level_channels": (1, 2)}, "four integers"),
        ({"representation_size": 8}, "representation_size"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.DensePredictionTransformer(**{**SMALL, "classes": 2, **arguments})


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
def test_resizing_keeps_linear_maps():
    ramp = np.arange(5.0)[:, None] + 10 * np.arange(4.0)
    image = keras.ops.convert_to_tensor(ramp[None, :, :, None], "float32")
    # The corners are aligned.
    rows = np.linspace(0, 4, 9)
    columns = np.linspace(0, 3, 7)
    resized = to_numpy(resize_bilinear(image, (9, 7), True))
    np.testing.assert_allclose(resized[0, :, :, 0], rows[:, None] + 10 * columns, atol=1e-5)
    # The edges are aligned, and pixels beyond the outer centers repeat them.
    rows = np.clip(np.arange(10) / 2 - 0.25, 0, 4)
    columns = np.clip(np.arange(8) / 2 - 0.25, 0, 3)
    resized = to_numpy(resize_bilinear(image, (10, 8)))
    np.testing.assert_allclose(resized[0, :, :, 0], rows[:, None] + 10 * columns, atol=1e-5)
