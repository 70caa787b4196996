"""Tests of DINOv2, DINOv3, MAE, I-JEPA and DINO against the outputs of transformers and timm."""

import re
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import checkpoints, families, recipes

from ..shared import FAMILY_FILES, assert_close, read_arrays

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


@pytest.fixture
def folder(tmp_path):
    """Returns a function that copies a golden file, and its config.json if there is one, to a
    folder."""

    def make(case):
        shutil.copy(FAMILY_FILES / f"{case}.safetensors", tmp_path / "model.safetensors")
        if (FAMILY_FILES / f"{case}.config.json").exists():
            shutil.copy(FAMILY_FILES / f"{case}.config.json", tmp_path / "config.json")
        return tmp_path

    return make


def outputs(case):
    return read_arrays(FAMILY_FILES / f"{case}.io.npz")


@pytest.mark.parametrize("case", HUGGING_FACE + TIMM)
def test_tokens_match_the_reference(case, folder):
    expected = outputs(case)
    options = {"num_heads": 3, "input_shape": expected["images"].shape[1:]} if case in TIMM else {}
    model = keras_vit.from_pretrained(folder(case), **options)
    tokens = keras_vit.features(model, expected["images"], tokens="all")
    assert_close(tokens, expected["tokens" if case in TIMM else "last_hidden_state"])


@pytest.mark.parametrize("case", [*HUGGING_FACE, "timm_dinov2_registers"])
def test_other_image_size_matches_the_reference(case, folder):
    expected = outputs(case)
    images = expected["images_resized"]
    model = keras_vit.from_pretrained(folder(case), input_shape=images.shape[1:], num_heads=3)
    name = "tokens_resized" if case in TIMM else "last_hidden_state_resized"
    assert_close(keras_vit.features(model, images, tokens="all"), expected[name])


# `(pattern, replacement)` pairs that convert Hugging Face's names to the authors' names.
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
    """Returns a golden file's arrays under the authors' names. If `packed`, joins the query, key
    and value arrays."""
    arrays = {}
    for name, array in load_file(FAMILY_FILES / f"{case}.safetensors").items():
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        arrays[name] = array
    for name in [name for name in arrays if packed and re.search(r"attn\.q(uery)?\.weight", name)]:
        block = name.partition("attn.")[0]
        for ending in ("weight", "bias"):
            parts = [arrays.pop(f"{block}attn.{n}.{ending}", None) for n in _parts(name)]
            # DINOv3 has no key bias. Use arbitrary values, which the callers mask or drop.
            parts = [np.full_like(parts[0], 9) if part is None else part for part in parts]
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
                arrays[f"blocks.{i}.mlp.{new}.{ending}"] = arrays.pop(
                    f"blocks.{i}.mlp.{old}.{ending}"
                )
    return {
        **arrays,
        "rope_embed.periods": np.ones(2, "float32"),
        "local_cls_norm.weight": np.ones(24, "float32"),
    }


def dinov3_timm():
    arrays = original("dinov3_gated")
    arrays["reg_token"] = arrays.pop("register_tokens")
    del arrays["mask_token"]
    for i in range(3):
        bias = arrays.pop(f"blocks.{i}.attn.qkv.bias")
        arrays[f"blocks.{i}.attn.q_bias"] = bias[:24]
        arrays[f"blocks.{i}.attn.v_bias"] = bias[48:]
        for number in (1, 2):
            arrays[f"blocks.{i}.gamma_{number}"] = arrays.pop(f"blocks.{i}.ls{number}.gamma")
        for old, new in (("gate_proj", "fc1_g"), ("up_proj", "fc1_x"), ("down_proj", "fc2")):
            for ending in ("weight", "bias"):
                arrays[f"blocks.{i}.mlp.{new}.{ending}"] = arrays.pop(
                    f"blocks.{i}.mlp.{old}.{ending}"
                )
    return arrays


DIALECTS = {
    "dinov2 original": ("dinov2", lambda: original("dinov2"), "bicubic_offset"),
    "dinov2 swiglu original": (
        "dinov2_swiglu",
        lambda: original("dinov2_swiglu"),
        "bicubic_offset",
    ),
    "dinov2 registers original": (
        "dinov2_registers",
        lambda: original("dinov2_registers"),
        "bicubic_antialias",
    ),
    "dinov2 timm": (
        "dinov2",
        lambda: {name: array for name, array in original("dinov2").items() if name != "mask_token"},
        "bicubic_antialias",
    ),
    "dinov2 classifier": (
        "dinov2",
        lambda: {
            f"dinov2.{name}": array
            for name, array in load_file(FAMILY_FILES / "dinov2.safetensors").items()
        },
        "bicubic",
    ),
    "dinov3 original": ("dinov3_gated", dinov3_original, None),
    "dinov3 timm": ("dinov3_gated", dinov3_timm, None),
    "mae for pre-training": (
        "mae",
        lambda: {
            **{
                f"vit.{name}": array
                for name, array in load_file(FAMILY_FILES / "mae.safetensors").items()
            },
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
def test_files_with_other_names_load_the_same_model(dialect, tmp_path):
    case, arrays, rule = DIALECTS[dialect]
    save_file(
        {name: np.ascontiguousarray(array) for name, array in arrays().items()},
        tmp_path / "model.safetensors",
    )
    expected = outputs(case)
    model = keras_vit.from_pretrained(
        tmp_path, num_heads=3, input_shape=expected["images"].shape[1:]
    )
    assert rule is None or model.arguments["position_resampling"] == rule
    assert_close(
        keras_vit.features(model, expected["images"], tokens="all"), expected["last_hidden_state"]
    )


@pytest.mark.one_backend
def test_features_match_the_reference_tokens(folder):
    expected = outputs("dinov2_registers")
    model = keras_vit.from_pretrained(folder("dinov2_registers"))
    images = expected["images"]
    tokens = expected["last_hidden_state"]
    assert_close(keras_vit.features(model, images), tokens[:, 0])
    assert_close(keras_vit.features(model, images, tokens="registers"), tokens[:, 1:5])
    assert_close(
        keras_vit.features(model, images, tokens="patch", grid=True),
        tokens[:, 5:].reshape(2, 6, 6, 24),
    )
    assert_close(keras_vit.features(model, images, tokens="pooled"), expected["pooler_output"])
    assert_close(model(images), expected["pooler_output"])
    assert_close(
        keras_vit.features(model, images, layers=1, tokens="all", norm=False), expected["hidden_1"]
    )


@pytest.mark.one_backend
def test_classes_require_a_new_head(folder):
    model = keras_vit.from_pretrained(folder("dinov2"), classes=5, head="new")
    assert model.output_shape == (None, 5)
    assert keras_vit.from_pretrained(
        folder("dinov2"), include_top=False, classes=5
    ).output_shape == (None, 24)
    for options in ({"classes": 5}, {"head": "new"}):
        with pytest.raises(
            ValueError,
            match='The file has no head.*`head="new"`',
        ):
            keras_vit.from_pretrained(folder("dinov2"), **options)


def test_new_head_returns_zero_logits(folder):
    model = keras_vit.from_pretrained(
        folder("dinov2_registers"), include_top=True, classes=5, head="new"
    )
    images = outputs("dinov2_registers")["images"]
    np.testing.assert_array_equal(model(images), np.zeros((2, 5)))
    assert_close(keras_vit.features(model, images), outputs("dinov2_registers")["pooler_output"])


SMALL = {
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
def test_rejects_model_with_other_architecture(case, arguments, message, head, folder):
    size = {**SMALL, "layer_scale": 1e-5, "exact_gelu": True, "include_top": False, **arguments}
    model = keras_vit.VisionTransformer(**size)
    with pytest.raises(ValueError, match=message) as raised:
        checkpoints.load(model, folder(case), head)
    assert "\n" not in str(raised.value)


@pytest.mark.one_backend
def test_mismatches_are_reported(folder, tmp_path):
    path = folder("dinov2_registers")
    with pytest.raises(
        ValueError, match="nearest valid heights are 35 and 42. Received: height=40"
    ):
        keras_vit.from_pretrained(path, input_shape=(40, 42, 3))
    with pytest.raises(ValueError, match="include_top=False, or load"):
        keras_vit.from_pretrained(path, include_top=True, classes=5)
    with pytest.raises(ValueError, match="no register tokens"):
        keras_vit.features(
            keras_vit.VisionTransformer(**SMALL), np.zeros((1, 42, 42, 3)), tokens="registers"
        )
    resnet = {
        "conv1.weight": np.ones((4, 3, 7, 7), "float32"),
        "fc.weight": np.ones((5, 4), "float32"),
    }
    resnet |= {f"layer1.{i}.conv1.weight": np.ones((4, 4, 3, 3), "float32") for i in range(2)}
    for arrays in ({"swin.layers.0.weight": np.ones((2, 2), "float32")}, resnet):
        save_file(arrays, tmp_path / "other.safetensors")
        with pytest.raises(
            ValueError, match="no weights of a known family; .*ViT.*DINOv2.*Received"
        ):
            keras_vit.from_pretrained(tmp_path / "other.safetensors")


@pytest.mark.one_backend
def test_preprocessing_comes_from_the_file(folder):
    model = keras_vit.from_pretrained(folder("dinov2"))
    preprocessing = keras_vit.preprocessing_of(model)
    np.testing.assert_allclose(preprocessing.mean, (123.675, 116.28, 103.53))
    assert (preprocessing.resize, preprocessing.interpolation) == ("shorter_side", "bicubic")
    white = keras_vit.preprocess_input(np.full((1, 42, 42, 3), 255.0), model)
    np.testing.assert_allclose(
        white[0, 0, 0], (1 - np.array([0.485, 0.456, 0.406])) / [0.229, 0.224, 0.225], rtol=1e-5
    )


@pytest.mark.one_backend
def test_npz_and_keras_files_keep_outputs(folder, tmp_path):
    images = outputs("dinov3_gated")["images"]
    model = keras_vit.from_pretrained(folder("dinov3_gated"))
    checkpoints.save(model, tmp_path / "model.npz")
    again = keras_vit.from_pretrained(tmp_path / "model.npz")
    np.testing.assert_array_equal(again(images), model(images))
    assert again.preprocessing == model.preprocessing
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        keras.saving.load_model(tmp_path / "model.keras")(images), model(images)
    )


@pytest.mark.one_backend
def test_head_with_unsupported_inputs_can_be_dropped(tmp_path):
    arrays = {
        f"dinov2.{name}": array
        for name, array in load_file(FAMILY_FILES / "dinov2.safetensors").items()
    }
    arrays |= {
        "classifier.weight": np.ones((5, 48), "float32"),
        "classifier.bias": np.ones(5, "float32"),
    }
    save_file(arrays, tmp_path / "model.safetensors")
    shutil.copy(FAMILY_FILES / "dinov2.config.json", tmp_path / "config.json")
    with pytest.raises(
        ValueError,
        match='class token and the mean.*head="new"',
    ):
        keras_vit.from_pretrained(tmp_path)
    expected = outputs("dinov2")
    assert_close(
        keras_vit.from_pretrained(tmp_path, include_top=False)(expected["images"]),
        expected["pooler_output"],
    )


@pytest.mark.one_backend
def test_config_has_rotary_positions():
    fields = families.model_config("DINOv3-S+/16", num_layers=1)
    assert fields["architecture"] == "VisionTransformer"
    model = recipes.defaults(**fields)["model"]
    assert model["rotary"] == {"style": "half", "coordinates": "centered", "theta": 100.0}
    assert recipes.defaults(**families.model_config("ViT-B/16"))["model"]["rotary"] == {}
    family = families.find_family("ViT-B/16")
    assert families.registry.constructor_arguments(family, {"rotary": {}}) == {"rotary": None}
