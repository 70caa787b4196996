"""Tests of DINO, DINOv2, DINOv3, MAE and I-JEPA against the outputs of transformers and timm."""

import pytest

import keras_vit
from keras_vit import checkpoints

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
    assert_close(model(images), reference["pooler_output"])
    block_1 = keras_vit.features(model, images, layers=1, tokens="all", norm=False)
    assert_close(block_1, reference["hidden_1"])


@pytest.fixture
def dinov2(tmp_path):
    """Returns a folder with the weights and config of a DINOv2 model."""
    return write_case("dinov2", tmp_path)


@pytest.mark.one_backend
def test_classes_require_a_new_head(dinov2):
    for arguments in ({"classes": 5}, {"classes": None, "head": "new"}):
        with pytest.raises(ValueError, match='The file has no head.*`head="new"`'):
            keras_vit.from_pretrained(dinov2, **arguments)
    model = keras_vit.from_pretrained(dinov2, classes=5, include_top=False)
    assert model.output_shape == (None, 24)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "arguments, message",
    [({"num_registers": 4}, "num_registers=4"), ({"layer_scale": None}, "layer_scale=")],
)
def test_rejects_model_with_other_architecture(arguments, message, dinov2):
    _, of_file = checkpoints.infer_architecture(dinov2)
    model = keras_vit.VisionTransformer(**{**of_file, **arguments})
    with pytest.raises(ValueError, match=message):
        checkpoints.load(model, dinov2, head="new")


@pytest.mark.one_backend
def test_rejects_image_size_that_patches_do_not_divide(dinov2):
    with pytest.raises(ValueError, match="nearest valid heights are 35 and 42"):
        keras_vit.from_pretrained(dinov2, input_shape=(40, 42, 3))
