"""Tests of the config.json of timm and transformers next to the weights."""

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.dialects import timm
from keras_vit.families import dinov3, eva02, inference

from ..shared import assert_close, images_for, to_numpy
from .golden_cases import read_case, read_config, write_case

pytestmark = pytest.mark.one_backend


def write_with_fields(case, folder, fields, arrays=None):
    """Writes a case with changed fields of its config.json, and returns the folder."""
    return write_case(case, folder, arrays, {**read_config(case), **fields})


def with_head(case):
    """Returns the arrays of a case of timm and a random head of five classes."""
    arrays = read_case(case)
    width = len(arrays["blocks.0.norm1.weight"])
    arrays["head.weight"] = np.random.default_rng(0).normal(size=(5, width)).astype("float32")
    arrays["head.bias"] = np.arange(5, dtype="float32")
    return arrays


@pytest.mark.parametrize(
    "case, fields, pooled",
    [
        ("timm_deit3", {"global_pool": "avg"}, "patch"),
        ("timm_deit3", {"global_pool": "token", "model_args": {"global_pool": "avg"}}, "patch"),
        ("timm_deit3", {}, "class"),
        ("timm_dinov3", {"global_pool": "token"}, "class"),
        ("timm_dinov3", {}, "patch"),  # timm's default
    ],
)
def test_timm_config_determines_the_pooled_tokens(case, fields, pooled, tmp_path):
    folder = write_with_fields(case, tmp_path, fields, with_head(case))
    model = keras_vit.from_pretrained(folder, num_heads=3, input_shape=(32, 32, 3))
    images = images_for(model)
    tokens = keras_vit.features(model, images, tokens=pooled)
    tokens = to_numpy(tokens).reshape(2, -1, model.hidden_size)
    expected = model.head(tokens.mean(axis=1))
    assert_close(model(images), expected)


def test_norm_after_pooling_is_read(tmp_path):
    arrays = with_head("timm_deit3")
    for ending in ("weight", "bias"):
        arrays[f"fc_norm.{ending}"] = arrays.pop(f"norm.{ending}")
    folder = write_case("timm_deit3", tmp_path, arrays, {"global_pool": "avg"})
    model = keras_vit.from_pretrained(folder, num_heads=3)
    assert model.classifier == "token_gap"
    assert model.pool_norm is not None


def test_rejects_head_trained_with_other_pooling(tmp_path):
    folder = write_case("timm_deit3", tmp_path, with_head("timm_deit3"), {"global_pool": "avg"})
    with pytest.raises(ValueError, match="classifier='token_gap'"):
        keras_vit.from_pretrained(folder, num_heads=3, classifier="token")
    options = {"classifier": "token", "head": "new", "classes": 2}
    model = keras_vit.from_pretrained(folder, num_heads=3, **options)
    assert model.output_shape == (None, 2)


def test_timm_num_heads_is_read(tmp_path):
    folder = write_case("timm_deit3", tmp_path, config={"model_args": {"num_heads": 6}})
    assert keras_vit.from_pretrained(folder).num_heads == 6


@pytest.mark.parametrize(
    "architecture, num_heads",
    [
        ("vit_base_patch16_gap_224", 16),
        ("vit_giant_patch16_radio_v3", 24),
        ("vit_so400m_patch14_reg1_tipsv2", 16),
    ],
)
def test_timm_architecture_determines_num_heads(architecture, num_heads):
    assert timm.read_config({"architecture": architecture}).num_heads == num_heads


def test_published_num_heads_require_the_same_pooling():
    # These are the dimensions of SigLIP 2's giant, which has attention pooling, and of RADIO's,
    # which has a class token and another number of heads.
    giant = {"patch_size": 16, "hidden_size": 1536, "num_layers": 40, "mlp_dim": 6144}
    assert inference._published_heads({**giant, "classifier": "map"}) == 16
    assert inference._published_heads({**giant, "classifier": "token"}) is None


@pytest.mark.parametrize(
    "case, fields, message",
    [
        ("timm_deit3", {"global_pool": "max"}, "`global_pool` is 'max'"),
        (
            "timm_deit3",
            {"architecture": "vit_base_patch16_rpn_224"},
            "rpn_224 is not supported",
        ),
        (
            "timm_deit3",
            {"architecture": "vit_small_patch16_rope_ape_224"},
            "rope_ape_224 is not supported",
        ),
        ("timm_deit3", {"model_args": {"act_layer": "relu"}}, "not 'relu'"),
        ("timm_deit3", {"model_args": {"norm_layer": "rmsnorm"}}, "not 'rmsnorm'"),
        ("timm_dinov2_swiglu", {"model_args": {"act_layer": "gelu"}}, "must be silu"),
        ("timm_eva02", {"model_args": {"use_rot_pos_emb": False}}, "use_rot_pos_emb=False"),
        ("timm_eva02", {"model_args": {"ref_feat_shape": [4, 6]}}, "must be a square"),
        ("dinov2", {"hidden_act": "relu"}, "`hidden_act` must be one of"),
        ("dinov3_gated", {"hidden_act": "gelu"}, "`hidden_act` must be silu"),
        ("dino", {"pooler_act": "gelu"}, "`pooler_act` must be tanh"),
        # Values of a wrong type
        ("dinov2", {"num_attention_heads": "3"}, "`num_heads` must be"),
        ("dinov2", {"layer_norm_eps": "small"}, "must be a positive number"),
        ("dinov3", {"rope_theta": [1]}, "config.json of the weights is invalid"),
        ("clip", {"vision_config": None}, "`vision_config` must be a JSON object"),
    ],
)
def test_rejects_unsupported_config_value(case, fields, message, tmp_path):
    folder = write_with_fields(case, tmp_path, fields)
    with pytest.raises(ValueError, match=message) as raised:
        keras_vit.from_pretrained(folder)
    assert "\n" not in str(raised.value)


PLAIN_VIT = {"architecture": "vit_base_patch16_224"}


@pytest.mark.parametrize(
    "case, fields, expected",
    [
        ("timm_deit3", {"model_args": {"act_layer": "quick_gelu"}}, {"mlp": "quick_gelu"}),
        ("timm_deit3", {"architecture": "vit_base_patch32_siglip_gap_256"}, {"exact_gelu": None}),
        ("timm_clip", PLAIN_VIT, {"epsilon": None, "mlp": "gelu"}),
        (
            "timm_clip",
            {"architecture": "vit_base_patch16_clip_224"},
            {"epsilon": 1e-5, "mlp": "gelu"},
        ),
        (
            "timm_clip",
            {**PLAIN_VIT, "model_args": {"act_layer": "gelu_tanh"}},
            {"mlp": "gelu_tanh"},
        ),
        ("timm_dinov3", {"model_args": {"img_size": [32, 64]}}, {"input_shape": (32, 64, 3)}),
        (
            "timm_dinov3",
            {"pretrained_cfg": {"input_size": [3, 48, 32]}},
            {"input_shape": (48, 32, 3)},
        ),
        ("dinov3", {"image_size": [48, 32]}, {"input_shape": (48, 32, 3)}),
        ("clip", {}, {"position_resampling": "bicubic"}),
        ("siglip", {}, {"position_resampling": "bicubic"}),
        ("timm_deit3", {"architecture": "beit3_base_patch16_224"}, {"epsilon": 1e-5}),
        (
            "timm_dinov3",
            {"model_args": {"rope_temperature": 30}},
            {"rotary": {**dinov3.ROTARY, "theta": 30}},
        ),
        (
            "timm_eva02",
            {"model_args": {"rope_temperature": 30}},
            {"rotary": {**eva02.ROTARY, "theta": 30}},
        ),
    ],
)
def test_config_sets_arguments(case, fields, expected, tmp_path):
    folder = write_with_fields(case, tmp_path, fields)
    _, arguments = checkpoints.infer_architecture(folder, num_heads=3)
    assert {name: arguments.get(name) for name in expected} == expected


def test_image_size_determines_the_grid(tmp_path):
    arrays = read_case("timm_deit3")
    # Nine positions fit a class token and a 2x4 grid, or a 3x3 grid without a class token.
    arrays["pos_embed"] = arrays["pos_embed"][:, :1].repeat(9, axis=1)
    config = {"model_args": {"img_size": [16, 32]}}
    folder = write_case("timm_deit3", tmp_path, arrays, config)
    model = keras_vit.from_pretrained(folder, num_heads=3)
    assert model.grid == (2, 4)
    assert model.arguments["class_token_position"]


def test_second_config_of_old_clip_files_takes_precedence(tmp_path):
    config = read_config("clip")
    second = config["vision_config"]
    wrong = {"num_attention_heads": 2, "hidden_act": "gelu"}
    for first in ({"vision_config": wrong}, {}):
        fields = {"model_type": "clip", **first, "vision_config_dict": second}
        model = keras_vit.from_pretrained(write_case("clip", tmp_path, config=fields))
        assert (model.num_heads, model.arguments["mlp"]) == (3, "quick_gelu")


@pytest.mark.parametrize("case", ["clip", "siglip"])
def test_num_heads_defaults_to_12_as_in_transformers(case, tmp_path):
    config = read_config(case)
    del config["vision_config"]["num_attention_heads"]
    folder = write_case(case, tmp_path, config=config)
    assert keras_vit.from_pretrained(folder).num_heads == 12
