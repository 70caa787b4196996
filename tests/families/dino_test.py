"""Tests of DINO, DINOv2, DINOv3, MAE and I-JEPA against the outputs of transformers and timm."""

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_vit
from keras_vit import checkpoints, families, recipes

from ..shared import assert_close
from .golden_cases import read_case, read_outputs, write_case

HUGGING_FACE = (
    "dinov2",
    "dinov2_swiglu",
    "dinov2_registers",
    "dinov3",
    "dinov3_gated",
    "mae",
    "ijepa",
    "dino",
)
TIMM = ("timm_dinov2_registers", "timm_dinov2_swiglu", "timm_dinov3")


@pytest.mark.parametrize("case", HUGGING_FACE)
def test_tokens_match_transformers(case, tmp_path):
    reference = read_outputs(case)
    model = keras_vit.from_pretrained(write_case(case, tmp_path))
    tokens = keras_vit.features(model, reference["images"], tokens="all")
    assert_close(tokens, reference["last_hidden_state"])


@pytest.mark.parametrize("case", TIMM)
def test_tokens_match_timm(case, tmp_path):
    reference = read_outputs(case)
    images = reference["images"]
    folder = write_case(case, tmp_path)
    model = keras_vit.from_pretrained(folder, num_heads=3, input_shape=images.shape[1:])
    assert_close(keras_vit.features(model, images, tokens="all"), reference["tokens"])


@pytest.mark.parametrize("case", [*HUGGING_FACE, "timm_dinov2_registers"])
def test_other_image_size_matches_the_reference(case, tmp_path):
    reference = read_outputs(case)
    images = reference["images_resized"]
    folder = write_case(case, tmp_path)
    model = keras_vit.from_pretrained(folder, num_heads=3, input_shape=images.shape[1:])
    tokens = keras_vit.features(model, images, tokens="all")
    name = "tokens_resized" if case in TIMM else "last_hidden_state_resized"
    assert_close(tokens, reference[name])


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
@pytest.mark.parametrize("options", [{"classes": 5}, {"head": "new"}], ids=str)
def test_classes_require_a_new_head(options, dinov2):
    with pytest.raises(ValueError, match='The file has no head.*`head="new"`'):
        keras_vit.from_pretrained(dinov2, **options)


@pytest.mark.one_backend
def test_missing_head_can_be_left_out(dinov2):
    model = keras_vit.from_pretrained(dinov2, include_top=False, classes=5)
    assert model.output_shape == (None, 24)
    with pytest.raises(ValueError, match="include_top=False, or load"):
        keras_vit.from_pretrained(dinov2, include_top=True, classes=5)


def test_new_head_returns_zero_logits(dinov2):
    model = keras_vit.from_pretrained(dinov2, classes=5, head="new")
    reference = read_outputs("dinov2")
    np.testing.assert_array_equal(model(reference["images"]), np.zeros((2, 5)))
    assert_close(keras_vit.features(model, reference["images"]), reference["pooler_output"])


@pytest.mark.one_backend
def test_head_with_unsupported_inputs_can_be_dropped(tmp_path):
    arrays = {f"dinov2.{name}": array for name, array in read_case("dinov2").items()}
    # The head reads the class token and the mean of the patches, of 24 values each.
    arrays["classifier.weight"] = np.ones((5, 48), "float32")
    arrays["classifier.bias"] = np.ones(5, "float32")
    write_case("dinov2", tmp_path, arrays)
    with pytest.raises(ValueError, match='class token and the mean.*head="new"'):
        keras_vit.from_pretrained(tmp_path)
    model = keras_vit.from_pretrained(tmp_path, include_top=False)
    reference = read_outputs("dinov2")
    assert_close(model(reference["images"]), reference["pooler_output"])


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
        ("dinov2_registers", {}, r"num_registers=4.*Received: "),
        (
            "dinov2",
            {"num_registers": 4},
            r"VisionTransformer .*is VisionTransformer .*num_registers=4",
        ),
        ("dinov2", {"num_layers": 2}, r"num_layers=3.*num_layers=2"),
        ("dinov2", {"layer_scale": None}, "layer_scale=.*Received: "),
        ("dinov2", {"exact_gelu": False}, "a model with exact_gelu=True"),
        ("dinov2", {"num_heads": 4}, "num_heads=3.*num_heads=4"),
        ("dinov3", {}, "it is VisionTransformer .*Received: "),
    ],
)
@pytest.mark.parametrize("head", ["keep", "new"])
def test_rejects_model_with_other_architecture(case, arguments, message, head, tmp_path):
    matching = {**SIZES_OF_FILE, "layer_scale": 1e-5, "exact_gelu": True, "include_top": False}
    model = keras_vit.VisionTransformer(**{**matching, **arguments})
    with pytest.raises(ValueError, match=message) as raised:
        checkpoints.load(model, write_case(case, tmp_path), head)
    assert "\n" not in str(raised.value)


@pytest.mark.one_backend
def test_rejects_image_size_that_patches_do_not_divide(dinov2):
    message = "nearest valid heights are 35 and 42. Received: height=40"
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(dinov2, input_shape=(40, 42, 3))


@pytest.mark.one_backend
def test_features_require_registers():
    model = keras_vit.VisionTransformer(**SIZES_OF_FILE)
    with pytest.raises(ValueError, match="no register tokens"):
        keras_vit.features(model, np.zeros((1, 42, 42, 3)), tokens="registers")


SWIN = {"swin.layers.0.weight": np.ones((2, 2), "float32")}
RESNET = {
    "conv1.weight": np.ones((4, 3, 7, 7), "float32"),
    "layer1.0.conv1.weight": np.ones((4, 4, 3, 3), "float32"),
    "layer1.1.conv1.weight": np.ones((4, 4, 3, 3), "float32"),
    "fc.weight": np.ones((5, 4), "float32"),
}


@pytest.mark.one_backend
@pytest.mark.parametrize("arrays", [SWIN, RESNET], ids=["swin", "resnet"])
def test_rejects_weights_of_other_architectures(arrays, tmp_path):
    save_file(arrays, tmp_path / "other.safetensors")
    message = "no weights of a known family; .*ViT.*DINOv2.*Received"
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(tmp_path / "other.safetensors")


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
def test_model_config_has_rotary_positions():
    dinov3 = families.model_config("DINOv3-S+/16", num_layers=1)
    assert dinov3["architecture"] == "VisionTransformer"
    rotary = recipes.defaults(**dinov3)["model"]["rotary"]
    assert rotary == {"style": "half", "coordinates": "centered", "theta": 100.0}


@pytest.mark.one_backend
def test_empty_rotary_field_means_none():
    vit = families.model_config("ViT-B/16")
    assert recipes.defaults(**vit)["model"]["rotary"] == {}
    family = families.find_family("ViT-B/16")
    arguments = families.registry.constructor_arguments(family, {"rotary": {}})
    assert arguments == {"rotary": None}
