"""Tests of DINO, DINOv2, DINOv3, MAE and I-JEPA against the outputs of transformers and timm."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints, families, recipes

from ..shared import assert_close
from .golden_cases import read_outputs, write_case

CASES = (
    "dinov2",
    "dinov2_swiglu",
    "dinov2_registers",
    "dinov3",
    "dinov3_gated",
    "mae",
    "ijepa",
    "dino",
    "timm_dinov2_registers",
    "timm_dinov2_swiglu",
    "timm_dinov3",
)
RESIZED = [case for case in CASES if case not in ("timm_dinov2_swiglu", "timm_dinov3")]


@pytest.mark.parametrize(
    "case, size", [*((case, "") for case in CASES), *((case, "_resized") for case in RESIZED)]
)
def test_tokens_match_the_reference(case, size, tmp_path):
    reference = read_outputs(case)
    images = reference[f"images{size}"]
    is_timm = case.startswith("timm")
    arguments = {"num_heads": 3} if is_timm else {}
    model = keras_vit.from_pretrained(
        write_case(case, tmp_path), input_shape=images.shape[1:], **arguments
    )
    name = "tokens" if is_timm else "last_hidden_state"
    assert_close(keras_vit.features(model, images, tokens="all"), reference[name + size])


@pytest.mark.one_backend
def test_features_match_the_reference_tokens(tmp_path):
    model = keras_vit.from_pretrained(write_case("dinov2_registers", tmp_path))
    reference = read_outputs("dinov2_registers")
    images = reference["images"]
    tokens = reference["last_hidden_state"]  # the class token, 4 registers and 6x6 patches
    assert_close(keras_vit.features(model, images), tokens[:, 0])
    assert_close(keras_vit.features(model, images, tokens="registers"), tokens[:, 1:5])
    grid = keras_vit.features(model, images, tokens="patch", grid=True)
    assert_close(grid, tokens[:, 5:].reshape(2, 6, 6, 24))
    pooled = keras_vit.features(model, images, tokens="pooled")
    assert_close(pooled, reference["pooler_output"])
    assert_close(model(images), reference["pooler_output"])
    block_1 = keras_vit.features(model, images, layers=1, tokens="all", norm=False)
    assert_close(block_1, reference["hidden_1"])


@pytest.fixture
def dinov2(tmp_path):
    """Returns a folder with the weights and config of a DINOv2 model."""
    return write_case("dinov2", tmp_path)


@pytest.mark.one_backend
def test_classes_require_a_new_head(dinov2):
    with pytest.raises(ValueError, match='The file has no head.*`head="new"`'):
        keras_vit.from_pretrained(dinov2, classes=5)
    model = keras_vit.from_pretrained(dinov2, classes=5, include_top=False)
    assert model.output_shape == (None, 24)


# The architecture of the DINO files without layer scale and exact GELU.
SIZES_OF_FILE = {
    "patch_size": 7,
    "num_layers": 3,
    "hidden_size": 24,
    "mlp_dim": 96,
    "num_heads": 3,
    "input_shape": (42, 42, 3),
}


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "case, arguments, message",
    [
        ("dinov2_registers", {}, "num_registers=4"),
        ("dinov2", {"num_registers": 4}, "is VisionTransformer .*num_registers=4"),
        ("dinov2", {"layer_scale": None}, "layer_scale="),
        ("dinov2", {"exact_gelu": False}, "exact_gelu=True"),
        ("dinov2", {"num_heads": 4}, "num_heads=3.*num_heads=4"),
        ("dinov3", {}, "it is VisionTransformer"),
    ],
)
def test_rejects_model_with_other_architecture(case, arguments, message, tmp_path):
    matching = {**SIZES_OF_FILE, "layer_scale": 1e-5, "exact_gelu": True, "include_top": False}
    model = keras_vit.VisionTransformer(**{**matching, **arguments})
    with pytest.raises(ValueError, match=message):
        checkpoints.load(model, write_case(case, tmp_path), head="new")


@pytest.mark.one_backend
def test_rejects_image_size_that_patches_do_not_divide(dinov2):
    with pytest.raises(ValueError, match="nearest valid heights are 35 and 42"):
        keras_vit.from_pretrained(dinov2, input_shape=(40, 42, 3))


@pytest.mark.one_backend
def test_npz_and_keras_files_keep_outputs(tmp_path):
    images = read_outputs("dinov3_gated")["images"]
    model = keras_vit.from_pretrained(write_case("dinov3_gated", tmp_path))
    checkpoints.save(model, tmp_path / "model.npz")
    from_npz = keras_vit.from_pretrained(tmp_path / "model.npz")
    np.testing.assert_array_equal(from_npz(images), model(images))
    assert from_npz.preprocessing == model.preprocessing
    model.save(tmp_path / "model.keras")
    from_keras = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(from_keras(images), model(images))


@pytest.mark.one_backend
def test_empty_rotary_field_means_none():
    vit = families.model_config("ViT-B/16")
    assert recipes.defaults(**vit)["model"]["rotary"] == {}
    family = families.find_family("ViT-B/16")
    arguments = families.registry.constructor_arguments(family, {"rotary": {}})
    assert arguments == {"rotary": None}
