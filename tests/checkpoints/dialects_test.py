"""Tests of loading checkpoints in the formats of other libraries."""

import json
import shutil
import types

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.comparison import check_numerics
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.formats import Checkpoint, open_checkpoint
from keras_vit.checkpoints.names import POSITIONS
from keras_vit.checkpoints.readers import NpzFile

from ..shared import GOLDEN, assert_same_weights, random_images, randomize, read_arrays
from .helpers import VIT_TOKEN, assert_matches_logits, small_model, weights_of

pytestmark = pytest.mark.one_backend  # files are read with numpy

HF_TOKEN = GOLDEN / "hf_token.safetensors"
TIMM_TOKEN = GOLDEN / "timm_token.safetensors"
HF_ARGUMENTS = {"exact_gelu": True, "epsilon": 1e-12}
# The arguments that select each GELU
GELUS = {
    "gelu": [{"exact_gelu": True}, {"mlp": "gelu"}],
    "gelu_tanh": [{}, {"mlp": "gelu_tanh"}, {"mlp": "gelu_tanh", "exact_gelu": True}],
    "quick_gelu": [{"mlp": "quick_gelu"}],
}


@pytest.mark.parametrize(
    "file, arguments, message",
    [
        (TIMM_TOKEN, {}, "with mlp=gelu, "),
        (HF_TOKEN, {"exact_gelu": True}, "with epsilon=1e-12, "),
    ],
)
def test_rejects_model_with_different_gelu_or_epsilon(file, arguments, message):
    with pytest.raises(ValueError, match=message):
        small_model(weights=file, **arguments)


@pytest.mark.parametrize("form, name", [("vit_jax", "model.npz"), ("timm", "folder")])
@pytest.mark.parametrize("gelu", GELUS)
def test_loads_into_models_with_the_same_gelu(gelu, form, name, tmp_path):
    checkpoints.save(small_model(mlp=gelu, include_top=False), tmp_path / name, form)
    for other, variants in GELUS.items():
        for arguments in variants:
            model = small_model(**arguments, include_top=False)
            if other == gelu:
                checkpoints.load(model, tmp_path / name)
            else:
                with pytest.raises(ValueError, match=f"with mlp={gelu},.*mlp={other} "):
                    checkpoints.load(model, tmp_path / name)


def test_models_without_a_gelu_accept_every_gelu():
    model = types.SimpleNamespace(arguments={}, name="resnet")
    checkpoint = Checkpoint({}, {}, Facts(exact_gelu=True), Facts(), has_config=False)
    check_numerics(model, checkpoint, "model.npz")


def test_saved_file_stores_gelu_and_epsilon(tmp_path):
    arguments = {"exact_gelu": np.True_, "epsilon": 1e-5}
    model = small_model(**arguments)
    model.arguments = {**model.arguments, "function": len}  # JSON cannot store it
    checkpoints.save(model, tmp_path / "model.npz")
    _, inferred = checkpoints.infer_architecture(tmp_path / "model.npz")
    assert inferred.items() >= arguments.items()
    with pytest.raises(ValueError, match="epsilon=1e-06, mlp=gelu_tanh"):
        checkpoints.load(small_model(), tmp_path / "model.npz")


def test_hugging_face_config_sets_gelu_epsilon_and_heads(tmp_path):
    path = tmp_path / "model.safetensors"
    shutil.copy(HF_TOKEN, path)
    config = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-6, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, arguments = checkpoints.infer_architecture(path)
    assert arguments["num_heads"] == 2
    # The values in the config are the defaults of the constructor.
    assert arguments.keys().isdisjoint({"exact_gelu", "epsilon"})
    checkpoints.load(small_model(num_heads=2), path)


@pytest.mark.parametrize("prefix", ["", "vit."])
def test_loads_array_names_of_transformers_5(prefix, tmp_path):
    replacements = {
        "encoder.layer.": "layers.",
        "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj",
        "attention.output.dense": "attention.o_proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
        "vit.": prefix,
    }
    tensors = {}
    for name, tensor in load_file(HF_TOKEN).items():
        for old, new in replacements.items():
            name = name.replace(old, new)
        tensors[name] = tensor
    save_file(tensors, tmp_path / "model.safetensors")
    model = small_model(weights=tmp_path / "model.safetensors", **HF_ARGUMENTS)
    assert_matches_logits(model, "hf_token")


def test_hugging_face_pooler_becomes_pre_logits(tmp_path):
    tensors = load_file(HF_TOKEN)
    del tensors["classifier.weight"], tensors["classifier.bias"]
    kernel = random_images((48, 64))
    tensors["vit.pooler.dense.weight"] = kernel
    tensors["vit.pooler.dense.bias"] = np.ones(48, "float32")
    save_file(tensors, tmp_path / "model.safetensors")
    arguments = {**HF_ARGUMENTS, "include_top": False, "representation_size": 48}
    model = small_model(weights=tmp_path / "model.safetensors", **arguments)
    np.testing.assert_array_equal(weights_of(model)["pre_logits/kernel"], kernel.T)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_files_load_exactly(dtype, tmp_path):
    half = {name: array.astype(dtype) for name, array in load_file(TIMM_TOKEN).items()}
    single = {name: array.astype("float32") for name, array in half.items()}
    save_file(single, tmp_path / "single.safetensors")
    save_file(half, tmp_path / "half.safetensors")
    np.savez(tmp_path / "half.npz", **half)
    expected = small_model(weights=tmp_path / "single.safetensors", exact_gelu=True)
    for file in ("half.safetensors", "half.npz"):
        model = small_model(weights=tmp_path / file, exact_gelu=True)
        assert_same_weights(model, expected)


def test_big_endian_float16_becomes_float32(tmp_path):
    np.savez(tmp_path / "half.npz", a=np.array([1.5, -2], ">f2"))
    with NpzFile(tmp_path / "half.npz") as file:
        array = file.arrays["a"].read()
    assert array.dtype == np.float32 and array.tolist() == [1.5, -2]


@pytest.mark.parametrize("prefix", ["opt/target/", "params/img/", "img/"])
def test_prefixed_weights_load_without_optimizer_state(prefix, tmp_path):
    original = read_arrays(VIT_TOKEN)
    arrays = {prefix + name: array for name, array in original.items()}
    arrays |= {f"opt/state/{name}/grad_ema": array for name, array in original.items()}
    np.savez(tmp_path / "prefixed.npz", **arrays)
    model = small_model()
    report = checkpoints.load(model, tmp_path / "prefixed.npz")
    assert len(report.loaded) == len(report.unused) == len(original)
    assert_matches_logits(model, "vit_token")


def test_path_suffix_selects_a_subtree(tmp_path):
    original = read_arrays(VIT_TOKEN)
    arrays = {f"params/img/{name}": array for name, array in original.items()}
    arrays |= {name: array + 1 for name, array in original.items()}
    np.savez(tmp_path / "both.npz", **arrays)
    assert_matches_logits(small_model(weights=f"{tmp_path}/both.npz:img"), "vit_token")


def test_rejects_missing_subtree(tmp_path):
    with open_checkpoint(VIT_TOKEN) as checkpoint:
        np.savez(
            tmp_path / "model.npz",
            **{name: array.read() for name, array in checkpoint.arrays.items()},
        )
    with pytest.raises(ValueError, match="must have weights in the subtree 'imgg'"):
        small_model(weights=f"{tmp_path}/model.npz:imgg")


def test_old_big_vision_file_keeps_its_logits(tmp_path):
    arrays = {
        name.removeprefix("params/").removeprefix("MAPHead_0/"): array
        for name, array in read_arrays(GOLDEN / "bigvision_map.ckpt.npz").items()
    }
    arrays[POSITIONS] = arrays.pop("pos_embedding")
    np.savez(tmp_path / "old.npz", **arrays)
    model = small_model(weights=tmp_path / "old.npz", classifier="map")
    assert_matches_logits(model, "bigvision_map")


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
    for name, array in arrays.items():
        if array.shape[:-1] == (1, 1, 1) and not name.endswith("kernel"):
            arrays[name] = array.reshape(-1)
    np.savez(tmp_path / "flat.npz", **arrays)
    flat = keras_vit.from_pretrained(tmp_path / "flat.npz")
    assert_same_weights(flat, keras_vit.from_pretrained(path))


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
