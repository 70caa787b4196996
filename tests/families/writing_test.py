"""Tests that models saved in the formats of timm and transformers return the same outputs."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints
from keras_vit.families.dinov3 import ROTARY
from keras_vit.families.eva02 import ROTARY as EVA02

from ..shared import FAMILY_FILES, SIZES, assert_close, images_for, randomize

# The formats that can represent the model of each golden file.
CASES = {
    "clip": ("huggingface", "timm"),
    "clip_gelu": ("huggingface", "timm"),
    "timm_clip": ("timm",),
    "siglip": ("huggingface", "timm"),
    "timm_siglip": ("timm",),
    "deit_distilled": ("huggingface",),
    "timm_deit_distilled": ("huggingface", "timm"),
    "timm_deit3": ("timm",),
    "timm_eva02": ("timm",),
    "timm_eva02_separate": ("timm",),
    "timm_eva02_clip": ("timm",),
    "dinov2": ("huggingface", "timm"),
    "dinov2_swiglu": ("huggingface", "timm"),
    "dinov2_registers": ("huggingface", "timm"),
    "timm_dinov2_registers": ("huggingface", "timm"),
    "timm_dinov2_swiglu": ("huggingface", "timm"),
    "dinov3": ("huggingface", "timm"),
    "dinov3_gated": ("huggingface", "timm"),
    "timm_dinov3": ("huggingface", "timm"),
    "mae": ("huggingface",),
    "ijepa": ("huggingface", "timm"),
    "dino": ("huggingface", "timm"),  # timm uses another epsilon
}
PAIRS = [(case, form) for case, forms in CASES.items() for form in forms]


def model_of(case, folder, fine_tuned=False, form="timm"):
    """Loads a golden file. If `fine_tuned`, adds noise to weights and, for timm, replaces the
    head."""
    shutil.copy(FAMILY_FILES / f"{case}.safetensors", folder / "model.safetensors")
    arguments = {"num_heads": 3, **({"mlp": "quick_gelu"} if case == "timm_clip" else {})}
    if case == "timm_dinov3":
        arguments["input_shape"] = (32, 32, 3)
    if (FAMILY_FILES / f"{case}.config.json").exists():
        shutil.copy(FAMILY_FILES / f"{case}.config.json", folder / "config.json")
    if case == "timm_eva02":
        (folder / "config.json").write_text('{"model_args": {"ref_feat_shape": [4, 4]}}')
    if fine_tuned and form == "timm":
        arguments |= {"head": "new", "classes": 7, "include_top": True}
    model = keras_vit.from_pretrained(folder, **arguments)
    if fine_tuned:
        random = np.random.default_rng(0)
        for weight in model.weights:
            if not (form == "huggingface" and "head/bias" in weight.path and "clip" in case):
                weight.assign(weight + random.normal(scale=0.1, size=weight.shape))
    return model


@pytest.mark.one_backend
@pytest.mark.parametrize("case, form", PAIRS)
def test_written_folder_restores_the_model(case, form, tmp_path):
    (tmp_path / "from").mkdir()
    model = model_of(case, tmp_path / "from")
    checkpoints.save(model, tmp_path / "to", format=form)
    files = {
        "config.json",
        "model.safetensors",
        *(["preprocessor_config.json"] if form == "huggingface" else []),
    }
    assert {path.name for path in (tmp_path / "to").iterdir()} == files
    again = keras_vit.from_pretrained(tmp_path / "to")
    ours, theirs = (m.preprocessing.to_config() for m in (model, again))
    np.testing.assert_allclose(
        [*ours.pop("mean"), *ours.pop("std")], [*theirs.pop("mean"), *theirs.pop("std")]
    )
    if form == "huggingface":
        assert ours == theirs
    images = images_for(model)
    assert_close(again(images), model(images))
    assert_close(
        keras_vit.features(again, images, tokens="all"),
        keras_vit.features(model, images, tokens="all"),
    )


# Loads each folder with timm or transformers and writes `outputs.npz` into it. The script runs in a
# separate process, because importing both PyTorch and TensorFlow can fail.
READER = """
import json, sys
from pathlib import Path
import numpy as np, timm, torch, transformers

def run(folder):
    config = json.loads((folder / "config.json").read_text())
    images = torch.tensor(np.load(folder / "images.npy").transpose(0, 3, 1, 2))
    with torch.no_grad():
        if "architecture" in config:
            model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
            outputs = {"encoded": model.forward_features(images), "output": model(images)}
        else:
            loader = getattr(transformers, config["architectures"][0])
            model, info = loader.from_pretrained(folder, output_loading_info=True)
            assert not info["unexpected_keys"], info
            optional = ("pooler", "mask")
            for key in info["missing_keys"]:
                assert any(word in key for word in optional), info
            result = model.eval()(images)
            name = "last" if "CLIP" in config["architectures"][0] else "encoded"
            outputs = {name: result.get("last_hidden_state"), "output": result.get("image_embeds")}
            if result.get("logits") is not None:
                outputs["output"] = result.logits
            if "Siglip" in config["architectures"][0]:
                outputs["output"] = result.pooler_output
    arrays = {name: x.numpy() for name, x in outputs.items() if x is not None}
    np.savez(folder / "outputs.npz", **arrays)

for folder in map(Path, sys.argv[1:]):
    try:
        run(folder)
    except Exception as error:
        (folder / "error.txt").write_text(repr(error))
"""


def vit(folder, fine_tuned):
    """Returns a plain Vision Transformer for images that are not square."""
    sizes = {"patch_size": 4, "num_layers": 2, "hidden_size": 12, "mlp_dim": 20, "num_heads": 3}
    sizes |= {
        "attention_bias": "qkvo" if fine_tuned else "o",
        "input_shape": (12, 20, 3),
        "classes": 4,
    }
    model = keras_vit.VisionTransformer(**sizes, class_token_position=fine_tuned)
    return randomize(model, 0.3)


WRITTEN = [
    (case, form, fine_tuned)
    for case, form in [*PAIRS, ("vit", "timm"), ("vit", "huggingface")]
    for fine_tuned in (False, True)
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Returns `{(case, format, fine_tuned): (model, images, folder)}`. Folders contain
    `outputs.npz` or `error.txt`."""
    python = os.environ.get("KERAS_VIT_TORCH_PYTHON", sys.executable)
    found = subprocess.run(
        [python, "-c", "import timm, torch, transformers"], capture_output=True, check=False
    )
    if found.returncode:
        pytest.skip(
            "needs torch, timm and transformers (keras_vit[interop]), here or in "
            "KERAS_VIT_TORCH_PYTHON"
        )
    result = {}
    folders = []
    for key in WRITTEN:
        case, form, fine_tuned = key
        source = tmp_path_factory.mktemp("from")
        folder = tmp_path_factory.mktemp("to")
        model = (
            vit(source, fine_tuned) if case == "vit" else model_of(case, source, fine_tuned, form)
        )
        checkpoints.save(model, folder, format=form)
        np.save(folder / "images.npy", images_for(model))
        folders.append(folder)
        result[key] = model, images_for(model), folder
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    child = subprocess.run(
        [python, "-c", READER, *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert child.returncode == 0, child.stderr[-600:]
    return result


@pytest.mark.full
@pytest.mark.one_backend
@pytest.mark.parametrize("key", WRITTEN, ids=str)
def test_written_files_load_in_other_libraries(key, written):
    model, images, folder = written[key]
    assert not (folder / "error.txt").exists(), (folder / "error.txt").read_text()
    theirs = dict(np.load(folder / "outputs.npz"))
    out = model.intermediates(images)
    ours = {"encoded": out["encoded"], "last": out["tokens"][-1], "output": model(images)}
    assert theirs
    for name, expected in theirs.items():
        assert_close(ours[name], expected)


MODEL = {**SIZES, "patch_size": 8, "input_shape": (8, 8, 3)}
WIDE = {"input_shape": (8, 16, 3), "exact_gelu": True}
CLIP = {"pre_norm": True, "patch_bias": False, "epsilon": 1e-5, "mlp": "quick_gelu", "classes": 4}
SINES = {"position_embedding": "sincos2d", "class_token_position": False}
SHARED = {"position_embedding_at": "every_layer_shared"}
DINOV3 = {
    "rotary": ROTARY,
    "position_embedding": "none",
    "layer_scale": 1e-5,
    "mlp_norm": True,
    "include_top": False,
}


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "form, arguments, message",
    [
        (
            "timm",
            {"representation_size": 5},
            ": no class of the library has all",
        ),
        (
            "timm",
            {"attention_bias": "kvo"},
            ": no class of the library has all",
        ),
        (
            "huggingface",
            {**SINES, "classifier": "gap"},
            ": IJepa.* requires position_embedding='learned'. Received: ",
        ),
        ("huggingface", SINES, ": ViTForImage.* requires position_embedding='learned'"),
        (
            "huggingface",
            SHARED,
            ": the closest format does not support position_embedding_at='every_layer_shared'",
        ),
        (
            "timm",
            SHARED,
            ": the closest format does not support position_embedding_at='every_layer_shared'",
        ),
        ("huggingface", {"mlp_bias": False}, ": MLPs of the format always have biases. Received: "),
        (
            "huggingface",
            {"attention_bias": "kvo"},
            ": .* has attention biases that the model lacks",
        ),
        (
            "huggingface",
            {"classifier": "gap", "representation_size": 5},
            ".*IJepaForImageClassification .* has no pooler",
        ),
        (
            "huggingface",
            {**CLIP, "head_bias": 1.0},
            ": the closest format does not support the head's bias",
        ),
        (
            "huggingface",
            {**CLIP, **WIDE},
            ": CLIPVisionModelWithProjection .* only square images",
        ),
        (
            "huggingface",
            {**WIDE, "classifier": "map", "include_top": False},
            ".*SiglipVisionModel in .* square images",
        ),
        (
            "huggingface",
            {**WIDE, "layer_scale": 1.0, "include_top": False},
            ".*Dinov2Model in .* supports only square images",
        ),
        (
            "huggingface",
            DINOV3,
            ".*does not support .*_0/MlpBlock_0/LayerNorm_0",
        ),
    ],
)
def test_rejects_parts_unsupported_by_the_format(form, arguments, message, tmp_path):
    model = keras_vit.VisionTransformer(**{**MODEL, **arguments})
    with pytest.raises(ValueError, match=f"No format of '{form}' supports this model{message}"):
        checkpoints.save(model, tmp_path / "to", format=form)
    assert not (tmp_path / "to").exists()


@pytest.mark.one_backend
def test_rejects_unknown_format(tmp_path):
    with pytest.raises(
        ValueError,
        match="vit_jax, huggingface, timm.*format='flax'",
    ):
        checkpoints.save(keras_vit.VisionTransformer(**MODEL), tmp_path / "to", format="flax")


@pytest.mark.one_backend
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
        {"crop_fraction": 0.875, "interpolation": "bilinear"},
        {"mean": [30000] * 3, "std": [20000] * 3, "bit_depth": 16, "exif": True},
        {},
    ],
)
def test_written_folder_keeps_the_preprocessing(fields, tmp_path):
    model = keras_vit.VisionTransformer(
        **MODEL, include_top=False, preprocessing=keras_vit.Preprocessing(**fields)
    )
    checkpoints.save(model, tmp_path, format="huggingface")
    again = keras_vit.from_pretrained(tmp_path).preprocessing
    np.testing.assert_allclose(
        again.mean + again.std, model.preprocessing.mean + model.preprocessing.std, rtol=1e-12
    )
    assert dataclasses.replace(again, mean=(1, 1, 1), std=(1, 1, 1)) == dataclasses.replace(
        model.preprocessing, mean=(1, 1, 1), std=(1, 1, 1)
    )


@pytest.mark.one_backend
def test_16_bit_model_for_timm_gets_8_bit_preprocessing(tmp_path):
    deep = keras_vit.Preprocessing(mean=(32767.5,) * 3, std=(25700,) * 3, bit_depth=16)
    model = keras_vit.VisionTransformer(**MODEL, include_top=False, preprocessing=deep)
    checkpoints.save(model, tmp_path, format="timm")
    config = json.loads((tmp_path / "config.json").read_text())["pretrained_cfg"]
    np.testing.assert_allclose(config["mean"] + config["std"], [0.5] * 3 + [25700 / 65535] * 3)
    again = keras_vit.from_pretrained(tmp_path).preprocessing
    np.testing.assert_allclose(again.mean + again.std, [127.5] * 3 + [100] * 3)


@pytest.mark.one_backend
def test_transformers_cannot_crop_to_other_shapes(tmp_path):
    preprocessing = keras_vit.Preprocessing(resize="shorter_side", interpolation="bicubic")
    model = keras_vit.VisionTransformer(
        **{**MODEL, "input_shape": (16, 32, 3)}, preprocessing=preprocessing
    )
    with pytest.raises(ValueError, match="use format='timm'.*a model for 16x32 pixels"):
        checkpoints.save(model, tmp_path / "to", format="huggingface")
    assert not (tmp_path / "to").exists()
    checkpoints.save(model, tmp_path / "to", format="timm")


@pytest.mark.one_backend
def test_other_tiny_epsilon_is_written_with_a_warning(tmp_path, caplog):
    model = keras_vit.VisionTransformer(**SIZES, epsilon=1e-12, include_top=False)
    checkpoints.save(model, tmp_path / "near", format="timm")
    assert "uses epsilon=1e-06 instead of 1e-12" in caplog.text
    assert keras_vit.from_pretrained(tmp_path / "near").arguments["epsilon"] == 1e-6
    with pytest.raises(ValueError, match="does not support epsilon=0.1"):
        checkpoints.save(
            keras_vit.VisionTransformer(**MODEL, epsilon=0.1), tmp_path / "far", format="timm"
        )


@pytest.mark.one_backend
def test_written_config_lists_which_biases_exist(tmp_path):
    arguments = {
        **DINOV3,
        "mlp_norm": False,
        "attention_bias": "o",
        "mlp_bias": False,
        "exact_gelu": True,
    }
    checkpoints.save(
        keras_vit.VisionTransformer(**MODEL, **arguments), tmp_path, format="huggingface"
    )
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["query_bias"], config["proj_bias"], config["mlp_bias"]) == (False, True, False)
    keras_vit.from_pretrained(tmp_path)


@pytest.mark.one_backend
@pytest.mark.parametrize("class_token_position", [True, False])
def test_eva_prefix_tokens_have_no_positions(class_token_position, tmp_path):
    parts = {
        "mlp": "swiglu",
        "attention_bias": "qvo",
        "rotary": EVA02,
        "exact_gelu": True,
        "include_top": False,
    }
    parts |= {"num_registers": 2, "class_token_position": class_token_position}
    checkpoints.save(keras_vit.VisionTransformer(**MODEL, **parts), tmp_path, format="timm")
    config = json.loads((tmp_path / "config.json").read_text())["model_args"]
    assert (config["num_reg_tokens"], config["no_embed_class"]) == (2, True)
    assert keras_vit.from_pretrained(tmp_path).arguments["num_registers"] == 2
