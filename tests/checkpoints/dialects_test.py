"""Tests of loading checkpoints in the formats of other libraries."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.checkpoints.readers import SafetensorsFile

from ..shared import randomize

CASES = {
    "timm_token": ("timm_token.safetensors", {"exact_gelu": True}),
    "timm_gap": (
        "timm_gap.safetensors",
        {"exact_gelu": True, "classifier": "gap", "input_shape": (32, 48, 3)},
    ),
    "hf_token": ("hf_token.safetensors", {"exact_gelu": True, "epsilon": 1e-12}),
    "bigvision_gap": ("bigvision_gap.ckpt.npz", {"classifier": "gap"}),
    "bigvision_map": ("bigvision_map.ckpt.npz", {"classifier": "map"}),
    "bigvision_tok_sincos": (
        "bigvision_tok_sincos.ckpt.npz",
        {"position_embedding": "sincos2d", "class_token_position": False},
    ),
}


def logits(model, inputs):
    return keras.ops.convert_to_numpy(model(inputs))


def safetensors(path):
    with SafetensorsFile(path) as file:
        return {name: array.read() for name, array in file.arrays.items()}


@pytest.mark.parametrize("case", CASES)
def test_checkpoints_of_other_libraries_keep_their_logits(case, golden_files, small):
    file, arguments = CASES[case]
    model = small(weights=golden_files / file, **arguments)
    with np.load(golden_files / f"{case}.io.npz") as io:
        np.testing.assert_allclose(logits(model, io["inputs"]), io["logits"], atol=2e-5)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "file, arguments, message",
    [
        (
            "timm_token.safetensors",
            {},
            r"with exact_gelu=True, .* exact_gelu=False in",
        ),
        (
            "timm_token.safetensors",
            {"exact_gelu": True, "epsilon": 1e-5},
            "with epsilon=1e-06, .*epsilon=1e-05 in",
        ),
        (
            "hf_token.safetensors",
            {"exact_gelu": True},
            "with epsilon=1e-12, .* Received: epsilon=1e-06 in",
        ),
    ],
)
def test_rejects_model_with_different_gelu_or_epsilon(
    file, arguments, message, golden_files, small
):
    with pytest.raises(ValueError, match=message):
        small(weights=golden_files / file, **arguments)


@pytest.mark.one_backend
def test_saved_file_stores_gelu_and_epsilon(small, tmp_path):
    model = small(exact_gelu=True, epsilon=1e-5, input_shape=(16, 48, 3))
    checkpoints.save(model, tmp_path / "model.npz")
    _, arguments = checkpoints.infer_architecture(tmp_path / "model.npz")
    assert (arguments["exact_gelu"], arguments["epsilon"], arguments["input_shape"]) == (
        True,
        1e-5,
        (16, 48, 3),
    )
    with pytest.raises(ValueError, match="Received: exact_gelu=False, epsilon=1e-06"):
        checkpoints.load(small(), tmp_path / "model.npz")


@pytest.mark.one_backend
def test_hugging_face_config_sets_gelu_epsilon_and_heads(golden_files, small, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes((golden_files / "hf_token.safetensors").read_bytes())
    config = tmp_path / "config.json"
    config.write_text(
        '{"hidden_act": "gelu_new", "layer_norm_eps": 1e-06, "num_attention_heads": 2}'
    )
    _, arguments = checkpoints.infer_architecture(path)
    assert arguments["num_heads"] == 2 and not {"exact_gelu", "epsilon"} & set(arguments)
    checkpoints.load(small(num_heads=2), path)
    config.write_text('{"hidden_act": "relu"}')
    with pytest.raises(ValueError, match="`hidden_act` must be one of gelu, .*not 'relu'"):
        checkpoints.load(small(), path)
    config.write_text("[")
    with pytest.raises(ValueError, match="The config.json next to the weights is invalid"):
        checkpoints.load(small(), path)


@pytest.mark.one_backend
@pytest.mark.parametrize("prefix", ["", "vit."])
def test_loads_array_names_of_transformers_5(
    prefix, golden_files, small, tmp_path, write_safetensors
):
    renames = [
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
    for name, tensor in safetensors(golden_files / "hf_token.safetensors").items():
        for old, new in renames:
            name = name.replace(old, new)
        tensors[name] = tensor
    path = write_safetensors(tmp_path / "model.safetensors", tensors)
    model = small(weights=path, exact_gelu=True, epsilon=1e-12)
    with np.load(golden_files / "hf_token.io.npz") as io:
        np.testing.assert_allclose(logits(model, io["inputs"]), io["logits"], atol=2e-5)


@pytest.mark.one_backend
def test_hugging_face_pooler_becomes_pre_logits(
    golden_files, small, values, tmp_path, write_safetensors
):
    tensors = {
        k: v
        for k, v in safetensors(golden_files / "hf_token.safetensors").items()
        if not k.startswith("classifier")
    }
    kernel = np.random.default_rng(0).standard_normal((48, 64)).astype("float32")
    tensors |= {"vit.pooler.dense.weight": kernel, "vit.pooler.dense.bias": np.ones(48, "float32")}
    path = write_safetensors(tmp_path / "model.safetensors", tensors)
    model = small(
        weights=path, exact_gelu=True, epsilon=1e-12, include_top=False, representation_size=48
    )
    np.testing.assert_array_equal(values(model)["pre_logits/kernel"], kernel.T)


@pytest.mark.one_backend
def test_error_names_layer_scale_missing_in_the_model(
    golden_files, small, tmp_path, write_safetensors
):
    tensors = safetensors(golden_files / "timm_token.safetensors") | {
        "blocks.0.ls1.gamma": np.ones(64, "float32")
    }
    path = write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(ValueError, match="it is .* layer_scale=.*, and vision_transformer is"):
        small(weights=path, exact_gelu=True)


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_files_load_exactly(
    kind, golden_files, small, values, arrays, tmp_path, write_safetensors
):
    rounded = {}
    halves = {}
    for name, array in arrays(golden_files / "vit_token.ckpt.npz").items():
        if kind == "float16":
            halves[name] = array.astype(np.float16)
            rounded[name] = halves[name].astype(np.float32)
        else:
            bits = array.view(np.uint32) >> 16
            halves[name] = bits.astype(np.uint16).view("V2")
            rounded[name] = (bits << 16).view(np.float32)
    np.savez(tmp_path / "half.npz", **halves)
    np.savez(tmp_path / "rounded.npz", **rounded)
    half = small(weights=tmp_path / "half.npz")
    full = small(weights=tmp_path / "rounded.npz")
    for name, value in values(half).items():
        np.testing.assert_array_equal(value, values(full)[name])

    code = {"float16": "F16", "bfloat16": "BF16"}[kind]
    tensors = safetensors(golden_files / "timm_token.safetensors")
    view = np.float16 if kind == "float16" else np.uint16
    tensors = {
        name: t.astype(np.float16) if kind == "float16" else (t.view(np.uint32) >> 16).astype(view)
        for name, t in tensors.items()
    }
    path = write_safetensors(tmp_path / "half.safetensors", tensors, dict.fromkeys(tensors, code))
    model = small(weights=path, exact_gelu=True)
    expected = tensors["head.weight"].T
    if kind == "bfloat16":
        expected = (expected.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(values(model)["head/kernel"], expected.astype(np.float32))


@pytest.mark.one_backend
@pytest.mark.parametrize("prefix", ["opt/target/", "params/", "params/img/", "img/"])
def test_prefixed_weights_load_without_optimizer_state(
    prefix, golden_files, small, arrays, tmp_path
):
    original = arrays(golden_files / "vit_token.ckpt.npz")
    moved = {prefix + name: array for name, array in original.items()}
    moved |= {f"opt/state/{name}/grad_ema": array for name, array in original.items()}
    np.savez(tmp_path / "moved.npz", **moved)
    model = small()
    report = checkpoints.load(model, tmp_path / "moved.npz")
    assert len(report.loaded) == len(original) == len(report.unused)
    with np.load(golden_files / "vit_token.io.npz") as io:
        np.testing.assert_allclose(logits(model, io["inputs"]), io["logits"], atol=1e-5)


@pytest.mark.one_backend
def test_path_suffix_selects_a_subtree(golden_files, small, arrays, tmp_path):
    original = arrays(golden_files / "vit_token.ckpt.npz")
    both = {f"params/img/{name}": array for name, array in original.items()}
    both |= {name: array + 1 for name, array in original.items()}
    np.savez(tmp_path / "both.npz", **both)
    with np.load(golden_files / "vit_token.io.npz") as io:
        model = small(weights=f"{tmp_path}/both.npz:img")
        np.testing.assert_allclose(logits(model, io["inputs"]), io["logits"], atol=1e-5)


@pytest.mark.one_backend
def test_old_big_vision_file_reproduces_the_logits(golden_files, small, arrays, tmp_path):
    old = {}
    for name, array in arrays(golden_files / "bigvision_map.ckpt.npz").items():
        name = name.removeprefix("params/").removeprefix("MAPHead_0/")
        old["Transformer/posembed_input/pos_embedding" if name == "pos_embedding" else name] = array
    assert "probe" in old and "LayerNorm_0/scale" in old
    np.savez(tmp_path / "old.npz", **old)
    model = small(weights=tmp_path / "old.npz", classifier="map")
    with np.load(golden_files / "bigvision_map.io.npz") as io:
        np.testing.assert_allclose(logits(model, io["inputs"]), io["logits"], atol=2e-5)


@pytest.mark.one_backend
def test_scanned_big_vision_file_reproduces_the_logits(golden_files, small, arrays, tmp_path):
    scanned = {}
    original = arrays(golden_files / "bigvision_gap.ckpt.npz")
    for name, array in original.items():
        if "encoderblock_0/" in name:
            both = [array, original[name.replace("encoderblock_0", "encoderblock_1")]]
            scanned[name.replace("encoderblock_0", "encoderblock")] = np.stack(both)
        elif "encoderblock_" not in name:
            scanned[name] = array
    np.savez(tmp_path / "scanned.npz", **scanned)
    model = small(weights=tmp_path / "scanned.npz", classifier="gap")
    with np.load(golden_files / "bigvision_gap.io.npz") as io:
        np.testing.assert_allclose(logits(model, io["inputs"]), io["logits"], atol=2e-5)


def test_loads_1d_and_4d_group_norms(golden_files, small, arrays, values, tmp_path):
    original = arrays(golden_files / "hybrid_2stage.ckpt.npz")
    assert original["gn_root/scale"].shape == (1, 1, 1, 64)
    flat = {
        k: v.reshape(v.shape[-1]) if v.shape[:3] == (1, 1, 1) and v.ndim == 4 else v
        for k, v in original.items()
    }
    flat["embedding/kernel"] = original["embedding/kernel"]
    flat |= {k: v for k, v in original.items() if k.endswith("kernel")}
    np.savez(tmp_path / "flat.npz", **flat)
    arguments = {"patch_size": 1, "resnet_blocks": (1, 2), "input_shape": (64, 64, 3)}
    wide, flat = (
        small(weights=w, **arguments)
        for w in (golden_files / "hybrid_2stage.ckpt.npz", tmp_path / "flat.npz")
    )
    for name, value in values(wide).items():
        np.testing.assert_array_equal(value, values(flat)[name])


@pytest.mark.full
@pytest.mark.one_backend
def test_bit_files_with_numbered_convolutions_load(tmp_path, arrays, values):
    model = keras_vit.BiT_R50x1(input_shape=(32, 32, 3), classes=4)
    randomize(model)
    checkpoints.save(model, tmp_path / "bit.npz")
    saved = arrays(tmp_path / "bit.npz")
    assert saved["resnet/head/conv2d/kernel"].shape == (1, 1, 2048, 4)
    assert "resnet/block1/unit01/a/proj/standardized_conv2d/kernel" in saved
    numbered = {
        name.replace(
            "block2/unit01/a/standardized_conv2d", "block2/unit01/a/standardized_conv2d_1"
        ): a
        for name, a in saved.items()
    }
    assert numbered.keys() != saved.keys()
    np.savez(tmp_path / "numbered.npz", **numbered)
    other = keras_vit.BiT_R50x1(
        input_shape=(32, 32, 3), classes=4, weights=tmp_path / "numbered.npz"
    )
    for name, value in values(model).items():
        np.testing.assert_array_equal(value, values(other)[name])
