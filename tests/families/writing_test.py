"""Models are written as folders of timm and transformers, which load them and compute the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints

GOLDEN = Path(__file__).parent.parent / "golden" / "families"
# For each golden file, the formats that hold its model.
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
    "dino": ("huggingface",),  # its epsilon is none of timm's
}
PAIRS = [(case, form) for case, forms in CASES.items() for form in forms]
TOLERANCE = 2e-5


def model_of(case, folder, fine_tuned=False, form="timm"):
    """The model of a golden file; a fine-tuned one has another head, where the format has one, and other weights."""
    shutil.copy(GOLDEN / f"{case}.safetensors", folder / "model.safetensors")
    arguments = {"num_heads": 3, **({"mlp": "quick_gelu"} if case == "timm_clip" else {})}
    if case == "timm_dinov3":
        arguments["input_shape"] = (32, 32, 3)
    if (GOLDEN / f"{case}.config.json").exists():
        shutil.copy(GOLDEN / f"{case}.config.json", folder / "config.json")
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


def images_of(model):
    return np.random.default_rng(1).normal(size=(2, *model.image_shape)).astype("float32")


def assert_close(result, expected):
    result, expected = (np.asarray(keras.ops.convert_to_numpy(x)) for x in (result, expected))
    assert result.shape == expected.shape
    difference = np.abs(result - expected).max() / np.abs(expected).max()
    print(f"largest difference: {difference:.1e}")
    assert difference < TOLERANCE


@pytest.mark.one_backend
@pytest.mark.parametrize("case, form", PAIRS)
def test_a_written_folder_gives_the_same_model(case, form, tmp_path):
    (tmp_path / "from").mkdir()
    model = model_of(case, tmp_path / "from")
    checkpoints.save(model, tmp_path / "to", format=form)
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["config.json", "model.safetensors"]
    again = keras_vit.from_pretrained(tmp_path / "to")
    images = images_of(model)
    assert_close(again(images), model(images))
    assert_close(keras_vit.features(again, images, tokens="all"), keras_vit.features(model, images, tokens="all"))


# Loads every folder with the library that it is for, and writes `outputs.npz` into it: a process of its own, since
# PyTorch and TensorFlow may not be loaded together.
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
            assert not {name for name in info["missing_keys"] if "pooler" not in name and "mask" not in name}, info
            result = model.eval()(images)
            name = "last" if "CLIP" in config["architectures"][0] else "encoded"
            outputs = {name: result.get("last_hidden_state"), "output": result.get("image_embeds")}
            if result.get("logits") is not None:
                outputs["output"] = result.logits
            if "Siglip" in config["architectures"][0]:
                outputs["output"] = result.pooler_output
    np.savez(folder / "outputs.npz", **{name: x.numpy() for name, x in outputs.items() if x is not None})

for folder in map(Path, sys.argv[1:]):
    try:
        run(folder)
    except Exception as error:
        (folder / "error.txt").write_text(repr(error))
"""


def vit(folder, fine_tuned):
    """A Vision Transformer of the paper for images that are not square."""
    sizes = {"patch_size": 4, "num_layers": 2, "hidden_size": 12, "mlp_dim": 20, "num_heads": 3}
    model = keras_vit.VisionTransformer(**sizes, input_shape=(12, 20, 3), classes=4, class_token_position=fine_tuned)
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(scale=0.3, size=weight.shape))
    return model


WRITTEN = [
    (case, form, fine_tuned)
    for case, form in [*PAIRS, ("vit", "timm"), ("vit", "huggingface")]
    for fine_tuned in (False, True)
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """`{(case, format, fine_tuned): (model, images, folder)}`, after one run of the other libraries."""
    python = os.environ.get("KERAS_VIT_TORCH_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import timm, torch, transformers"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("needs torch, timm and transformers (keras_vit[interop]), here or in KERAS_VIT_TORCH_PYTHON")
    result, folders = {}, []
    for key in WRITTEN:
        case, form, fine_tuned = key
        source, folder = tmp_path_factory.mktemp("from"), tmp_path_factory.mktemp("to")
        model = vit(source, fine_tuned) if case == "vit" else model_of(case, source, fine_tuned, form)
        checkpoints.save(model, folder, format=form)
        np.save(folder / "images.npy", images_of(model))
        folders.append(folder)
        result[key] = model, images_of(model), folder
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    child = subprocess.run(
        [python, "-c", READER, *map(str, folders)], capture_output=True, text=True, check=False, env=environment
    )
    assert child.returncode == 0, child.stderr[-600:]
    return result


@pytest.mark.full
@pytest.mark.one_backend
@pytest.mark.parametrize("key", WRITTEN, ids=str)
def test_other_libraries_load_what_is_written(key, written):
    model, images, folder = written[key]
    assert not (folder / "error.txt").exists(), (folder / "error.txt").read_text()
    theirs = dict(np.load(folder / "outputs.npz"))
    out = model.intermediates(images)
    ours = {"encoded": out["encoded"], "last": out["tokens"][-1], "output": model(images)}
    assert theirs
    for name, expected in theirs.items():
        assert_close(ours[name], expected)


@pytest.mark.one_backend
def test_what_a_format_has_no_place_for_is_refused(tmp_path):
    sizes = {"patch_size": 8, "num_layers": 1, "hidden_size": 8, "mlp_dim": 8, "num_heads": 2, "input_shape": (8, 8, 3)}
    model = keras_vit.VisionTransformer(**sizes, representation_size=5)
    with pytest.raises(ValueError, match="No format of 'timm' holds this model. Received: model="):
        checkpoints.save(model, tmp_path / "to", format="timm")
    model = keras_vit.VisionTransformer(**sizes, mlp_bias=False)
    with pytest.raises(ValueError, match="No format of 'huggingface' holds this model"):
        checkpoints.save(model, tmp_path / "to", format="huggingface")
    assert not any((tmp_path / "to").iterdir())
    with pytest.raises(ValueError, match="`format` must be one of vit_jax, huggingface, timm. Received: format='flax'"):
        checkpoints.save(model, tmp_path / "to", format="flax")
