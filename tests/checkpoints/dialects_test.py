"""Tests of loading checkpoints in the formats of other libraries."""

import json
import shutil

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.names import POSITIONS
from keras_vit.checkpoints.readers import SafetensorsFile

from ..shared import GOLDEN, assert_same_weights, randomize, read_arrays
from .helpers import (
    VIT_TOKEN,
    assert_matches_logits,
    small_model,
    weights_of,
    write_safetensors,
)

HF_ARGUMENTS = {"exact_gelu": True, "epsilon": 1e-12}


def read_safetensors(path):
    with SafetensorsFile(path) as file:
        return {name: array.read() for name, array in file.arrays.items()}


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "file, arguments, message",
    [
        ("timm_token.safetensors", {}, "with exact_gelu=True, "),
        ("timm_token.safetensors", {"exact_gelu": True, "epsilon": 1e-5}, "with epsilon=1e-06, "),
        ("hf_token.safetensors", {"exact_gelu": True}, "with epsilon=1e-12, "),
    ],
)
def test_rejects_model_with_different_gelu_or_epsilon(file, arguments, message):
    with pytest.raises(ValueError, match=message):
        small_model(weights=GOLDEN / file, **arguments)


@pytest.mark.one_backend
def test_saved_file_stores_gelu_and_epsilon(tmp_path):
    arguments = {"exact_gelu": True, "epsilon": 1e-5, "input_shape": (16, 48, 3)}
    checkpoints.save(small_model(**arguments), tmp_path / "model.npz")
    _, inferred = checkpoints.infer_architecture(tmp_path / "model.npz")
    assert inferred.items() >= arguments.items()
    with pytest.raises(ValueError, match="exact_gelu=False, epsilon=1e-06"):
        checkpoints.load(small_model(), tmp_path / "model.npz")


@pytest.mark.one_backend
def test_hugging_face_config_sets_gelu_epsilon_and_heads(tmp_path):
    path = tmp_path / "model.safetensors"
    shutil.copy(GOLDEN / "hf_token.safetensors", path)
    config = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-6, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, arguments = checkpoints.infer_architecture(path)
    assert arguments["num_heads"] == 2
    # These are the defaults of the constructor.
    assert "exact_gelu" not in arguments
    assert "epsilon" not in arguments
    checkpoints.load(small_model(num_heads=2), path)


@pytest.mark.one_backend
@pytest.mark.parametrize("prefix", ["", "vit."])
def test_loads_array_names_of_transformers_5(prefix, tmp_path):
    replacements = [
        ("encoder.layer.", "layers."),
        ("attention.attention.query", "attention.q_proj"),
        ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"),
        ("attention.output.dense", "attention.o_proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
        ("vit.", prefix),
    ]
    tensors = {}
    for name, tensor in read_safetensors(GOLDEN / "hf_token.safetensors").items():
        for old, new in replacements:
            name = name.replace(old, new)
        tensors[name] = tensor
    path = write_safetensors(tmp_path / "model.safetensors", tensors)
    assert_matches_logits(small_model(weights=path, **HF_ARGUMENTS), "hf_token")


@pytest.mark.one_backend
def test_hugging_face_pooler_becomes_pre_logits(tmp_path):
    tensors = read_safetensors(GOLDEN / "hf_token.safetensors")
    del tensors["classifier.weight"], tensors["classifier.bias"]
    kernel = np.random.default_rng(0).standard_normal((48, 64)).astype("float32")
    tensors["vit.pooler.dense.weight"] = kernel
    tensors["vit.pooler.dense.bias"] = np.ones(48, "float32")
    path = write_safetensors(tmp_path / "model.safetensors", tensors)
    arguments = {**HF_ARGUMENTS, "include_top": False, "representation_size": 48}
    model = small_model(weights=path, **arguments)
    np.testing.assert_array_equal(weights_of(model)["pre_logits/kernel"], kernel.T)


def to_float16(array):
    """Returns the rounded values in half precision and in float32."""
    half = array.astype(np.float16)
    return half, half.astype(np.float32)


def to_bfloat16(array):
    """Returns the bits of the truncated values as uint16, and the values in float32."""
    bits = array.view(np.uint32) >> 16
    return bits.astype(np.uint16), (bits << 16).view(np.float32)


@pytest.mark.one_backend
@pytest.mark.parametrize("round_values, code", [(to_float16, "F16"), (to_bfloat16, "BF16")])
def test_half_precision_files_load_exactly(round_values, code, tmp_path):
    half = {}
    single = {}
    for name, array in read_safetensors(GOLDEN / "timm_token.safetensors").items():
        half[name], single[name] = round_values(array)
    write_safetensors(tmp_path / "single.safetensors", single)
    write_safetensors(tmp_path / "half.safetensors", half, code)
    if code == "BF16":
        half = {name: array.view("V2") for name, array in half.items()}  # as numpy writes bfloat16
    np.savez(tmp_path / "half.npz", **half)
    expected = small_model(weights=tmp_path / "single.safetensors", exact_gelu=True)
    for file in ("half.safetensors", "half.npz"):
        model = small_model(weights=tmp_path / file, exact_gelu=True)
        assert_same_weights(model, expected)


@pytest.mark.one_backend
@pytest.mark.parametrize("prefix", ["opt/target/", "params/img/", "img/"])
def test_prefixed_weights_load_without_optimizer_state(prefix, tmp_path):
    original = read_arrays(VIT_TOKEN)
    arrays = {prefix + name: array for name, array in original.items()}
    arrays |= {f"opt/state/{name}/grad_ema": array for name, array in original.items()}
    np.savez(tmp_path / "prefixed.npz", **arrays)
    model = small_model()
    report = checkpoints.load(model, tmp_path / "prefixed.npz")
    assert len(report.loaded) == len(original)
    assert len(report.unused) == len(original)
    assert_matches_logits(model, "vit_token")


@pytest.mark.one_backend
def test_path_suffix_selects_a_subtree(tmp_path):
    original = read_arrays(VIT_TOKEN)
    arrays = {f"params/img/{name}": array for name, array in original.items()}
    arrays |= {name: array + 1 for name, array in original.items()}
    np.savez(tmp_path / "both.npz", **arrays)
    assert_matches_logits(small_model(weights=f"{tmp_path}/both.npz:img"), "vit_token")


@pytest.mark.one_backend
def test_old_big_vision_file_keeps_its_logits(tmp_path):
    arrays = {
        name.removeprefix("params/").removeprefix("MAPHead_0/"): array
        for name, array in read_arrays(GOLDEN / "bigvision_map.ckpt.npz").items()
    }
    arrays[POSITIONS] = arrays.pop("pos_embedding")
    assert "probe" in arrays
    assert "LayerNorm_0/scale" in arrays
    np.savez(tmp_path / "old.npz", **arrays)
    model = small_model(weights=tmp_path / "old.npz", classifier="map")
    assert_matches_logits(model, "bigvision_map")


@pytest.mark.one_backend
def test_scanned_big_vision_file_keeps_its_logits(tmp_path):
    original = read_arrays(GOLDEN / "bigvision_gap.ckpt.npz")
    scanned = {}
    for name, array in original.items():
        if "encoderblock_0/" in name:
            second = original[name.replace("encoderblock_0", "encoderblock_1")]
            scanned[name.replace("encoderblock_0", "encoderblock")] = np.stack([array, second])
        elif "encoderblock_" not in name:
            scanned[name] = array
    np.savez(tmp_path / "scanned.npz", **scanned)
    model = small_model(weights=tmp_path / "scanned.npz", classifier="gap")
    assert_matches_logits(model, "bigvision_gap")


def test_loads_1d_and_4d_group_norms(tmp_path):
    path = GOLDEN / "hybrid_2stage.ckpt.npz"
    arrays = read_arrays(path)
    assert arrays["gn_root/scale"].shape == (1, 1, 1, 64)
    for name, array in arrays.items():
        if array.shape[:-1] == (1, 1, 1) and not name.endswith("kernel"):
            arrays[name] = array.reshape(-1)
    np.savez(tmp_path / "flat.npz", **arrays)
    arguments = {"patch_size": 1, "resnet_blocks": (1, 2), "input_shape": (64, 64, 3)}
    model = small_model(weights=tmp_path / "flat.npz", **arguments)
    assert_same_weights(model, small_model(weights=path, **arguments))


@pytest.mark.one_backend
def test_bit_files_with_numbered_convolutions_load(tmp_path):
    sizes = {"depth": 8, "width": 32, "input_shape": (32, 32, 3), "classes": 4}
    model = randomize(keras_vit.BiTResNet(**sizes))
    checkpoints.save(model, tmp_path / "bit.npz")
    arrays = read_arrays(tmp_path / "bit.npz")
    assert arrays["resnet/head/conv2d/kernel"].ndim == 4
    assert "resnet/block1/unit01/a/proj/standardized_conv2d/kernel" in arrays
    layer = "resnet/block2/unit01/a/standardized_conv2d"
    arrays[f"{layer}_1/kernel"] = arrays.pop(f"{layer}/kernel")
    np.savez(tmp_path / "numbered.npz", **arrays)
    numbered = keras_vit.BiTResNet(**sizes, weights=tmp_path / "numbered.npz")
    assert_same_weights(numbered, model)
