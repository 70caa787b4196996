"""Tests that files with the array names of other libraries load the same models."""

import re

import numpy as np
import pytest

import keras_vit

from ..shared import assert_same_weights
from .golden_cases import read_case, write_case

pytestmark = pytest.mark.one_backend


def rename(arrays, *replacements):
    """Replaces regular expressions in the names of arrays."""
    renamed = {}
    for name, array in arrays.items():
        for pattern, replacement in replacements:
            name = re.sub(pattern, replacement, name)
        renamed[name] = array
    return renamed


def without(arrays, pattern):
    """Drops the arrays whose names match a regular expression at their start."""
    return {name: array for name, array in arrays.items() if not re.match(pattern, name)}


def pack(arrays, packed_name="attn.qkv."):
    """Concatenates the query, key and value arrays of each block."""
    packed = dict(arrays)
    for name in arrays:
        if not re.search(r"attn\.q_proj\.(weight|bias)$", name):
            continue
        block, _, ending = name.partition("attn.q_proj.")
        parts = [packed.pop(f"{block}attn.{part}_proj.{ending}") for part in "qkv"]
        packed[f"{block}{packed_name}{ending}"] = np.concatenate(parts)
    return packed


def clip_original(arrays):
    arrays = rename(
        arrays,
        (r"vision_model\.encoder\.layers", "visual.transformer.resblocks"),
        (r"vision_model\.embeddings\.patch_embedding", "visual.conv1"),
        (r"vision_model\.embeddings\.position_embedding\.weight", "visual.positional_embedding"),
        (r"vision_model\.embeddings\.class_embedding", "visual.class_embedding"),
        (r"vision_model\.pre_layrnorm", "visual.ln_pre"),
        (r"vision_model\.post_layernorm", "visual.ln_post"),
        (r"layer_norm(\d)", r"ln_\1"),
        (r"self_attn", "attn"),
        (r"mlp\.fc1", "mlp.c_fc"),
        (r"mlp\.fc2", "mlp.c_proj"),
        (r"text_model\.", "transformer.text."),
    )
    arrays["visual.proj"] = arrays.pop("visual_projection.weight").T
    return pack(arrays, packed_name="attn.in_proj_")


def siglip_tower_alone(arrays):
    return rename(without(arrays, "text|logit"), (r"vision_model\.", ""))


def deit3_original(arrays):
    return rename(arrays, (r"ls(\d)\.gamma", r"gamma_\1"))


def eva02_original(arrays):
    arrays = rename(
        arrays,
        (r"attn\.q_proj\.bias", "attn.q_bias"),
        (r"attn\.v_proj\.bias", "attn.v_bias"),
        (r"attn\.norm", "attn.inner_attn_ln"),
        (r"fc1_g", "w1"),
        (r"fc1_x", "w2"),
        (r"mlp\.norm", "mlp.ffn_ln"),
        (r"mlp\.fc2", "mlp.w3"),
    )
    return {**arrays, "rope.freqs_cos": np.ones(3, "float32")}


def authors_names(arrays):
    """Replaces Hugging Face's names by the names that the authors use."""
    return rename(
        arrays,
        (r"embeddings\.(cls_token|mask_token|register_tokens)", r"\1"),
        (r"embeddings\.position_embeddings", "pos_embed"),
        (r"embeddings\.patch_embeddings(?:\.projection)?\.(\w+)", r"patch_embed.proj.\1"),
        (r"(?:encoder\.)?layer\.", "blocks."),
        (r"layernorm_before", "norm1"),
        (r"layernorm_after", "norm2"),
        (r"attention\.(?:output\.dense|o_proj)", "attn.proj"),
        (r"attention\.(?:attention\.)?(q|k|v)(?:uery|ey|alue|_proj)", r"attn.\1_proj"),
        (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
        (r"intermediate\.dense", "mlp.fc1"),
        (r"output\.dense", "mlp.fc2"),
        (r"mlp\.weights_in", "mlp.w12"),
        (r"mlp\.weights_out", "mlp.w3"),
        (r"^layernorm", "norm"),
    )


def original(arrays):
    return pack(authors_names(arrays))


def dinov2_classifier(arrays):
    return {f"dinov2.{name}": array for name, array in arrays.items()}


def dinov3_original(arrays):
    arrays = rename(
        authors_names(arrays),
        (r"register_tokens", "storage_tokens"),
        (r"gate_proj", "w1"),
        (r"up_proj", "w2"),
        (r"down_proj", "w3"),
    )
    for i in range(3):  # the blocks of the golden file, which are 24 wide
        # The original files have arbitrary key biases, and a mask that turns them off.
        arrays[f"blocks.{i}.attn.k_proj.bias"] = np.full(24, 9, "float32")
        arrays[f"blocks.{i}.attn.qkv.bias_mask"] = np.repeat([1, 0, 1], 24).astype("float32")
    return {
        **pack(arrays),
        "rope_embed.periods": np.ones(2, "float32"),
        "local_cls_norm.weight": np.ones(24, "float32"),
    }


def dinov3_timm(arrays):
    arrays = rename(
        without(authors_names(arrays), "mask_token"),
        (r"register_tokens", "reg_token"),
        (r"attn\.([qv])_proj\.bias", r"attn.\1_bias"),
        (r"ls(\d)\.gamma", r"gamma_\1"),
        (r"gate_proj", "fc1_g"),
        (r"up_proj", "fc1_x"),
        (r"down_proj", "fc2"),
    )
    return pack(arrays)


def mae_for_pretraining(arrays):
    arrays = {f"vit.{name}": array for name, array in arrays.items()}
    return {**arrays, "decoder.mask_token": np.ones((1, 1, 8), "float32")}


def ijepa_original(arrays):
    arrays = {f"target_encoder.module.{name}": array for name, array in original(arrays).items()}
    return {**arrays, "predictor.module.mask_token": np.ones((1, 1, 8), "float32")}


@pytest.mark.parametrize(
    "case, convert",
    [
        ("clip", clip_original),
        ("siglip", siglip_tower_alone),
        ("timm_deit3", deit3_original),
        ("timm_eva02_clip", eva02_original),
        ("dinov2", original),
        ("dinov2_swiglu", original),
        ("dinov2_registers", original),
        ("dinov2", dinov2_classifier),
        ("dinov3_gated", dinov3_original),
        ("dinov3_gated", dinov3_timm),
        ("mae", mae_for_pretraining),
        ("ijepa", ijepa_original),
        ("dino", original),
    ],
)
def test_renamed_file_loads_the_same_model(case, convert, tmp_path):
    arguments = {"num_heads": 3}
    if case == "clip":
        arguments["mlp"] = "quick_gelu"  # the names do not tell the activation
    golden = write_case(case, tmp_path / "golden")
    renamed = write_case("renamed", tmp_path / "renamed", convert(read_case(case)), config={})
    expected = keras_vit.from_pretrained(golden, **arguments)
    model = keras_vit.from_pretrained(renamed, **arguments)
    assert_same_weights(model, expected)
    for name in ("mlp", "exact_gelu", "rotary", "classifier"):
        assert model.arguments[name] == expected.arguments[name]
    for name in ("mean", "std", "resize"):  # libraries decode and crop differently
        assert getattr(model.preprocessing, name) == getattr(expected.preprocessing, name)


@pytest.mark.parametrize(
    "case, convert, resampling",
    [
        ("dinov2", original, "bicubic_offset"),
        ("dinov2_registers", original, "bicubic_antialias"),
        ("ijepa", ijepa_original, "bicubic"),
        ("dino", original, "bicubic_antialias"),
    ],
)
def test_file_of_the_authors_determines_the_resampling(case, convert, resampling, tmp_path):
    folder = write_case("renamed", tmp_path, convert(read_case(case)), config={})
    model = keras_vit.from_pretrained(folder, num_heads=3)
    assert model.arguments["position_resampling"] == resampling
