"""Tests of the configs that are written for timm and transformers, and of models that these
libraries do not support."""

import dataclasses
import json

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.families import dinov3, eva02

from ..shared import SIZES

pytestmark = pytest.mark.one_backend

MODEL = {**SIZES, "patch_size": 8, "input_shape": (8, 8, 3)}
WIDE = {"input_shape": (8, 16, 3), "exact_gelu": True}
CLIP = {"pre_norm": True, "patch_bias": False, "epsilon": 1e-5, "mlp": "quick_gelu", "classes": 4}
SINES = {"position_embedding": "sincos2d", "class_token_position": False}
SHARED = {"position_embedding_at": "every_layer_shared"}
DINOV3 = {
    "rotary": dinov3.ROTARY,
    "position_embedding": "none",
    "layer_scale": 1e-5,
    "include_top": False,
}


@pytest.mark.parametrize(
    "library, arguments, message",
    [
        ("timm", {"representation_size": 5}, "no class of the library"),
        ("timm", SHARED, "position_embedding_at='every_layer_shared'"),
        ("huggingface", SHARED, "position_embedding_at='every_layer_shared'"),
        ("huggingface", {**SINES, "classifier": "gap"}, "IJepa.* position_embedding='learned'"),
        ("huggingface", {"mlp_bias": False}, "MLPs of the format always have biases"),
        ("huggingface", {"attention_bias": "kvo"}, "attention biases that the model lacks"),
        ("huggingface", {"classifier": "gap", "representation_size": 5}, "IJepa.* has no pooler"),
        ("huggingface", {**CLIP, "head_bias": 1.0}, "does not support the head's bias"),
        ("huggingface", {**CLIP, **WIDE}, "CLIP.* only square images"),
        (
            "huggingface",
            {**WIDE, "layer_scale": 1.0, "include_top": False},
            "Dinov2.* only square images",
        ),
        (
            "huggingface",
            {"layer_scale": 1.0, "include_top": False, "mlp": "swiglu", "mlp_dim": 12},
            "SwiGLU of a multiple of 8",
        ),
        ("huggingface", {**DINOV3, "mlp_norm": True}, "does not support .*MlpBlock_0/LayerNorm_0"),
        # The written files could not be read.
        ("huggingface", {"classifier": "gap", "mlp": "quick_gelu"}, "not 'quick_gelu'"),
        ("timm", {"classifier": "map", "num_registers": 2}, "must not be map"),
    ],
)
def test_rejects_parts_unsupported_by_the_library(library, arguments, message, tmp_path):
    model = keras_vit.VisionTransformer(**{**MODEL, **arguments})
    with pytest.raises(ValueError, match=f"No format of '{library}' supports .*{message}"):
        checkpoints.save(model, tmp_path / "written", format=library)
    assert not (tmp_path / "written").exists()


def test_rejects_other_architectures(tmp_path):
    model = keras_vit.AxialVisionTransformer(**MODEL)
    with pytest.raises(ValueError, match="no class of the library"):
        checkpoints.save(model, tmp_path, format="timm")


@pytest.mark.parametrize("arguments", [{"mlp_dim": 488}, {"mlp": "swiglu", "mlp_dim": 40}])
def test_mlp_ratio_of_dinov2_gives_the_units(arguments, tmp_path):
    sizes = {"hidden_size": 56, "layer_scale": 1.0, "include_top": False}
    model = keras_vit.VisionTransformer(**{**MODEL, **sizes, **arguments})
    checkpoints.save(model, tmp_path, format="huggingface")
    config = json.loads((tmp_path / "config.json").read_text())
    units = int(56 * config["mlp_ratio"])  # as in modeling_dinov2.py
    if config["use_swiglu_ffn"]:
        units = (int(units * 2 / 3) + 7) // 8 * 8
    assert units == arguments["mlp_dim"]


def save_with_preprocessing(folder, library, preprocessing, **arguments):
    model = keras_vit.VisionTransformer(**{**MODEL, **arguments}, preprocessing=preprocessing)
    checkpoints.save(model, folder, format=library)


@pytest.mark.parametrize(
    "fields",
    [
        {
            "resize": "shorter_side",
            "crop_fraction": 0.9,
            "interpolation": "bicubic",
            "mean": [3, 4, 5],
            "std": [1, 2, 3],
        },
        {"mean": [30000] * 3, "std": [20000] * 3, "bit_depth": 16, "exif": True},
    ],
    ids=["bicubic", "16-bit"],
)
def test_transformers_folder_keeps_the_preprocessing(fields, tmp_path):
    expected = keras_vit.Preprocessing(**fields)
    save_with_preprocessing(tmp_path, "huggingface", expected, include_top=False)
    restored = keras_vit.from_pretrained(tmp_path).preprocessing
    # The library stores the mean and std in other units.
    np.testing.assert_allclose(restored.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(restored.std, expected.std, rtol=1e-12)
    assert dataclasses.replace(restored, mean=expected.mean, std=expected.std) == expected


def test_16_bit_model_for_timm_gets_8_bit_preprocessing(tmp_path):
    deep = keras_vit.Preprocessing(mean=(32767.5,) * 3, std=(25700,) * 3, bit_depth=16)
    save_with_preprocessing(tmp_path, "timm", deep, include_top=False)
    restored = keras_vit.from_pretrained(tmp_path).preprocessing
    np.testing.assert_allclose(restored.mean, [127.5] * 3)
    np.testing.assert_allclose(restored.std, [100] * 3)


def test_transformers_cannot_crop_to_other_shapes(tmp_path):
    crop = keras_vit.Preprocessing(resize="shorter_side", interpolation="bicubic")
    wide = {"input_shape": (16, 32, 3)}
    with pytest.raises(ValueError, match="use format='timm'"):
        save_with_preprocessing(tmp_path / "written", "huggingface", crop, **wide)
    assert not (tmp_path / "written").exists()
    save_with_preprocessing(tmp_path / "written", "timm", crop, **wide)


def test_only_another_tiny_epsilon_is_written(tmp_path, caplog):
    model = keras_vit.VisionTransformer(**SIZES, epsilon=1e-12, include_top=False)
    checkpoints.save(model, tmp_path, format="timm")
    assert "uses epsilon=1e-06 instead of 1e-12" in caplog.text
    assert keras_vit.from_pretrained(tmp_path).arguments["epsilon"] == 1e-6
    model = keras_vit.VisionTransformer(**SIZES, epsilon=0.1)
    with pytest.raises(ValueError, match="does not support epsilon=0.1"):
        checkpoints.save(model, tmp_path, format="timm")


def test_written_config_lists_which_biases_exist(tmp_path):
    arguments = {**DINOV3, "attention_bias": "o", "mlp_bias": False, "exact_gelu": True}
    model = keras_vit.VisionTransformer(**MODEL, **arguments)
    checkpoints.save(model, tmp_path, format="huggingface")
    config = json.loads((tmp_path / "config.json").read_text())
    biases = {name: config[name] for name in ("query_bias", "proj_bias", "mlp_bias")}
    assert biases == {"query_bias": False, "proj_bias": True, "mlp_bias": False}
    keras_vit.from_pretrained(tmp_path)


def test_written_config_has_the_units_of_the_pooler(tmp_path):
    arguments = {"include_top": False, "representation_size": 5, "exact_gelu": True}
    checkpoints.save(keras_vit.VisionTransformer(**MODEL, **arguments), tmp_path, "huggingface")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["pooler_output_size"] == 5


def test_rejects_folder_with_another_processor(tmp_path):
    (tmp_path / "processor_config.json").write_text("{}")
    model = keras_vit.VisionTransformer(**MODEL, exact_gelu=True)
    with pytest.raises(ValueError, match="has a processor_config.json"):
        checkpoints.save(model, tmp_path, format="huggingface")


@pytest.mark.parametrize("class_token_position", [True, False])
def test_eva_prefix_tokens_have_no_positions(class_token_position, tmp_path):
    model = keras_vit.VisionTransformer(
        **MODEL,
        mlp="swiglu",
        attention_bias="qvo",
        rotary=eva02.ROTARY,
        exact_gelu=True,
        include_top=False,
        num_registers=2,
        class_token_position=class_token_position,
    )
    checkpoints.save(model, tmp_path, format="timm")
    config = json.loads((tmp_path / "config.json").read_text())["model_args"]
    assert config["num_reg_tokens"] == 2
    assert config["no_embed_class"]
    assert keras_vit.from_pretrained(tmp_path).arguments["num_registers"] == 2
