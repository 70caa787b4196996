"""Tests of unusual arrays in the files of model families."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_vit
from keras_vit import checkpoints

from ..shared import SIZES, assert_close, assert_same_weights, images_for, to_numpy
from .golden_cases import read_case, read_config, write_case

pytestmark = pytest.mark.one_backend


def test_rotary_model_without_class_token_is_not_dinov3(tmp_path):
    arrays = read_case("timm_dinov3")
    del arrays["cls_token"]
    folder = write_case("timm_dinov3", tmp_path, arrays)
    with pytest.raises(ValueError, match="the file requires its config.json"):
        keras_vit.from_pretrained(folder, num_heads=3, input_shape=(32, 32, 3), head="new")


def test_register_positions_are_added_to_the_registers(tmp_path):
    arrays = read_case("timm_deit3")
    width = arrays["pos_embed"].shape[2]
    position = np.arange(width, dtype="float32")
    # As in timm, the positions of the two registers follow the position of the class token.
    prefix = np.stack([position, 2 * position, 3 * position])[None]
    arrays["pos_embed"] = np.concatenate([prefix, arrays["pos_embed"][:, -16:]], axis=1)
    arrays["reg_token"] = np.ones((1, 2, width), "float32")
    folder = write_case("timm_deit3", tmp_path, arrays)
    model = keras_vit.from_pretrained(folder, num_heads=3)
    variables = checkpoints.names.canonical_variables(model)
    registers = to_numpy(variables["register_tokens"])
    np.testing.assert_array_equal(registers[0], [1 + 2 * position, 1 + 3 * position])
    positions = to_numpy(variables[checkpoints.names.POSITIONS])
    np.testing.assert_array_equal(positions[0, 0], position)
    assert positions.shape[1] == 17


def test_empty_register_array_means_no_registers(tmp_path):
    arrays = read_case("dinov3")
    registers = "embeddings.register_tokens"
    arrays[registers] = arrays[registers][:, :0]
    config = {**read_config("dinov3"), "num_register_tokens": 0}
    model = keras_vit.from_pretrained(write_case("dinov3", tmp_path, arrays, config))
    assert model.num_prefix_tokens == 1  # the class token


def test_rejects_attention_pooling_with_a_class_token(tmp_path):
    arrays = read_case("timm_siglip")
    arrays["cls_token"] = arrays["pos_embed"][:, :1]
    folder = write_case("timm_siglip", tmp_path, arrays)
    with pytest.raises(ValueError, match="`global_pool` must not be map"):
        keras_vit.from_pretrained(folder, num_heads=3)


def test_mask_token_and_pooler_of_deit_are_ignored(tmp_path):
    arrays = read_case("deit_distilled")
    expected = keras_vit.from_pretrained(write_case("deit_distilled", tmp_path / "without", arrays))
    unused = {
        "deit.embeddings.mask_token": np.ones((1, 1, 24), "float32"),
        "deit.pooler.dense.weight": np.eye(24, dtype="float32"),
        "deit.pooler.dense.bias": np.ones(24, "float32"),
    }
    folder = write_case("deit_distilled", tmp_path / "with", {**arrays, **unused})
    assert_same_weights(keras_vit.from_pretrained(folder), expected)


def test_qk_norms_have_timm_names(tmp_path):
    model = keras_vit.VisionTransformer(
        **SIZES, input_shape=(8, 8, 3), include_top=False, qk_norm=True
    )
    checkpoints.save(model, tmp_path / "timm", format="timm")
    arrays = load_file(tmp_path / "timm" / "model.safetensors")
    assert arrays["blocks.0.attn.q_norm.weight"].shape == (4,)
    restored = keras_vit.from_pretrained(tmp_path / "timm")
    assert any("query_norm" in weight.path for weight in restored.weights)


@pytest.mark.parametrize(
    "case, inputs, message",
    [
        ("clip", 24, "reads the mean of the patches without a norm"),
        ("deit_distilled", 24, "reads the class token of a model with a distillation token"),
        ("dinov2", 48, "class token and the mean"),
    ],
)
def test_unsupported_head_can_be_dropped(case, inputs, message, tmp_path):
    arrays = {
        name: array
        for name, array in read_case(case).items()
        if not re.search("classifier|visual_projection", name)
    }
    arrays["classifier.weight"] = np.ones((5, inputs), "float32")
    arrays["classifier.bias"] = np.ones(5, "float32")
    folder = write_case(case, tmp_path, arrays)
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(folder)
    keras_vit.from_pretrained(folder, include_top=False)


def test_siglip_classifier_reads_the_mean_of_patches(tmp_path):
    arrays = read_case("siglip")
    arrays["classifier.weight"] = np.random.default_rng(0).normal(size=(5, 24)).astype("float32")
    arrays["classifier.bias"] = np.ones(5, "float32")
    model = keras_vit.from_pretrained(write_case("siglip", tmp_path, arrays))
    images = images_for(model)
    patches = to_numpy(keras_vit.features(model, images, tokens="patch"))
    expected = patches.mean(axis=1) @ arrays["classifier.weight"].T + 1
    assert_close(model(images), expected)


def test_rejects_positions_without_a_class_token_row(tmp_path):
    arrays = read_case("dinov2")
    positions = "embeddings.position_embeddings"
    arrays[positions] = arrays[positions][:, 1:]
    folder = write_case("dinov2", tmp_path, arrays)
    with pytest.raises(ValueError, match="pos_embedding' in the checkpoint must be "):
        keras_vit.from_pretrained(folder, input_shape=(42, 42, 3))
