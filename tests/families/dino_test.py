"""DINOv2, DINOv3, MAE, I-JEPA and DINO give the outputs of the libraries that publish their weights."""

import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit

GOLDEN = Path(__file__).parent.parent / "golden" / "families"
HUGGING_FACE = ("dinov2", "dinov2_swiglu", "dinov2_registers", "dinov3", "dinov3_gated", "mae", "ijepa", "dino")
TIMM = ("timm_dinov2_registers", "timm_dinov2_swiglu", "timm_dinov3")
TOLERANCE = 2e-5


@pytest.fixture
def folder(tmp_path):
    """Makes a folder of Hugging Face's of a golden file."""

    def make(case):
        shutil.copy(GOLDEN / f"{case}.safetensors", tmp_path / "model.safetensors")
        if (GOLDEN / f"{case}.config.json").exists():
            shutil.copy(GOLDEN / f"{case}.config.json", tmp_path / "config.json")
        return tmp_path

    return make


def outputs(case):
    with np.load(GOLDEN / f"{case}.io.npz") as file:
        return dict(file)


def assert_close(result, expected):
    result = keras.ops.convert_to_numpy(result)
    assert result.shape == expected.shape
    difference = np.abs(result - expected).max() / np.abs(expected).max()
    print(f"largest difference: {difference:.1e}")
    assert difference < TOLERANCE


@pytest.mark.parametrize("case", HUGGING_FACE + TIMM)
def test_every_token_is_that_of_the_reference(case, folder):
    expected = outputs(case)
    options = {"num_heads": 3, "input_shape": expected["images"].shape[1:]} if case in TIMM else {}
    model = keras_vit.from_pretrained(folder(case), **options)
    tokens = keras_vit.features(model, expected["images"], tokens="all")
    assert_close(tokens, expected["tokens" if case in TIMM else "last_hidden_state"])


@pytest.mark.parametrize("case", [*HUGGING_FACE, "timm_dinov2_registers"])
def test_another_size_is_resampled_as_by_the_reference(case, folder):
    expected = outputs(case)
    images = expected["images_resized"]
    model = keras_vit.from_pretrained(folder(case), input_shape=images.shape[1:], num_heads=3)
    name = "tokens_resized" if case in TIMM else "last_hidden_state_resized"
    assert_close(keras_vit.features(model, images, tokens="all"), expected[name])


# From Hugging Face's names to those of the authors' files.
NAMES = (
    (r"embeddings\.(cls_token|mask_token|register_tokens)", r"\1"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.patch_embeddings(?:\.projection)?\.(\w+)", r"patch_embed.proj.\1"),
    (r"(?:encoder\.)?layer\.", "blocks."),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"attention\.(?:output\.dense|o_proj)", "attn.proj"),
    (r"attention\.(?:attention\.)?(query|key|value|[qkv](?=_proj))(?:_proj)?", r"attn.\1"),
    (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"output\.dense", "mlp.fc2"),
    (r"mlp\.weights_in", "mlp.w12"),
    (r"mlp\.weights_out", "mlp.w3"),
    (r"^layernorm", "norm"),
)


def original(case, packed=True):
    """The arrays of a golden file as the authors name them; queries, keys and values in one matrix if `packed`."""
    arrays = {}
    for name, array in load_file(GOLDEN / f"{case}.safetensors").items():
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        arrays[name] = array
    for name in [name for name in arrays if packed and re.search(r"attn\.q(uery)?\.weight", name)]:
        block = name.partition("attn.")[0]
        for ending in ("weight", "bias"):
            parts = [arrays.pop(f"{block}attn.{n}.{ending}", None) for n in _parts(name)]
            parts = [np.full_like(parts[0], 9) if part is None else part for part in parts]  # a bias that is masked
            arrays[f"{block}attn.qkv.{ending}"] = np.concatenate(parts)
    return arrays


def _parts(name):
    return ("query", "key", "value") if "query" in name else ("q", "k", "v")


def dinov3_original():
    arrays = original("dinov3_gated")
    arrays["storage_tokens"] = arrays.pop("register_tokens")
    for i in range(3):
        arrays[f"blocks.{i}.attn.qkv.bias_mask"] = np.repeat([1, 0, 1], 24).astype("float32")
        for old, new in (("gate_proj", "w1"), ("up_proj", "w2"), ("down_proj", "w3")):
            for ending in ("weight", "bias"):
                arrays[f"blocks.{i}.mlp.{new}.{ending}"] = arrays.pop(f"blocks.{i}.mlp.{old}.{ending}")
    return {**arrays, "rope_embed.periods": np.ones(2, "float32"), "local_cls_norm.weight": np.ones(24, "float32")}


def dinov3_timm():
    arrays = original("dinov3_gated")
    arrays["reg_token"] = arrays.pop("register_tokens")
    del arrays["mask_token"]
    for i in range(3):
        bias = arrays.pop(f"blocks.{i}.attn.qkv.bias")
        arrays[f"blocks.{i}.attn.q_bias"], arrays[f"blocks.{i}.attn.v_bias"] = bias[:24], bias[48:]
        for number in (1, 2):
            arrays[f"blocks.{i}.gamma_{number}"] = arrays.pop(f"blocks.{i}.ls{number}.gamma")
        for old, new in (("gate_proj", "fc1_g"), ("up_proj", "fc1_x"), ("down_proj", "fc2")):
            for ending in ("weight", "bias"):
                arrays[f"blocks.{i}.mlp.{new}.{ending}"] = arrays.pop(f"blocks.{i}.mlp.{old}.{ending}")
    return arrays


DIALECTS = {
    "dinov2 original": ("dinov2", lambda: original("dinov2"), "bicubic_offset"),
    "dinov2 swiglu original": ("dinov2_swiglu", lambda: original("dinov2_swiglu"), "bicubic_offset"),
    "dinov2 registers original": ("dinov2_registers", lambda: original("dinov2_registers"), "bicubic_antialias"),
    "dinov2 timm": (
        "dinov2",
        lambda: {name: array for name, array in original("dinov2").items() if name != "mask_token"},
        "bicubic_antialias",
    ),
    "dinov2 classifier": (
        "dinov2",
        lambda: {f"dinov2.{name}": array for name, array in load_file(GOLDEN / "dinov2.safetensors").items()},
        "bicubic",
    ),
    "dinov3 original": ("dinov3_gated", dinov3_original, None),
    "dinov3 timm": ("dinov3_gated", dinov3_timm, None),
    "mae for pre-training": (
        "mae",
        lambda: {
            **{f"vit.{name}": array for name, array in load_file(GOLDEN / "mae.safetensors").items()},
            "decoder.mask_token": np.ones((1, 1, 8), "float32"),
        },
        "bicubic",
    ),
    "ijepa original": (
        "ijepa",
        lambda: (
            {f"target_encoder.module.{name}": array for name, array in original("ijepa").items()}
            | {"predictor.module.mask_token": np.ones((1, 1, 8), "float32")}
        ),
        "bicubic",
    ),
    "dino original": ("dino", lambda: original("dino"), "bicubic_antialias"),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_other_names_give_the_same_model(dialect, tmp_path):
    case, arrays, rule = DIALECTS[dialect]
    save_file({name: np.ascontiguousarray(array) for name, array in arrays().items()}, tmp_path / "model.safetensors")
    expected = outputs(case)
    model = keras_vit.from_pretrained(tmp_path, num_heads=3, input_shape=expected["images"].shape[1:])
    assert rule is None or model.arguments["position_resampling"] == rule
    assert_close(keras_vit.features(model, expected["images"], tokens="all"), expected["last_hidden_state"])
