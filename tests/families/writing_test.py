"""Tests that models saved in the formats of timm and transformers return the same outputs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints

from ..shared import THREE_LAYERS, assert_close, images_for, randomize
from .golden_cases import write_case

# The formats that can represent the model of each case.
CASES = {
    "clip": ("huggingface", "timm"),
    "clip_gelu": ("huggingface", "timm"),
    "timm_clip": ("timm",),
    "siglip": ("huggingface", "timm"),
    "timm_deit_distilled": ("huggingface", "timm"),
    "timm_deit3": ("timm",),
    "timm_eva02": ("timm",),
    "timm_eva02_separate": ("timm",),
    "timm_eva02_clip": ("timm",),
    "dinov2": ("huggingface", "timm"),
    "dinov2_swiglu": ("huggingface", "timm"),
    "dinov2_registers": ("huggingface", "timm"),
    "timm_dinov2_registers": ("huggingface", "timm"),
    "dinov3": ("huggingface", "timm"),
    "dinov3_gated": ("huggingface", "timm"),
    "timm_dinov3": ("huggingface", "timm"),
    "mae": ("huggingface",),
    "ijepa": ("huggingface", "timm"),
    "dino": ("huggingface", "timm"),  # timm uses another epsilon
}
# Plain Vision Transformers for images that are not square, and their arguments.
PLAIN = {
    "vit": {"attention_bias": "qkvo"},
    "vit_without_class_position": {"attention_bias": "o", "class_token_position": False},
}
PAIRS = [(case, library) for case, libraries in CASES.items() for library in libraries]


def load_case(case, folder, **options):
    """Loads the model of a case, which is written to a folder."""
    options["num_heads"] = 3
    if case == "timm_clip":
        options["mlp"] = "quick_gelu"
    if case == "timm_dinov3":
        options["input_shape"] = (32, 32, 3)
    return keras_vit.from_pretrained(write_case(case, folder), **options)


@pytest.mark.one_backend
@pytest.mark.parametrize("case, library", PAIRS)
def test_written_folder_restores_the_model(case, library, tmp_path):
    model = load_case(case, tmp_path / "golden")
    checkpoints.save(model, tmp_path / "written", format=library)
    files = {"config.json", "model.safetensors"}
    if library == "huggingface":
        files.add("preprocessor_config.json")
    assert {path.name for path in (tmp_path / "written").iterdir()} == files
    restored = keras_vit.from_pretrained(tmp_path / "written")
    images = images_for(model)
    assert_close(restored(images), model(images))
    expected = model.preprocessing.to_config()
    preprocessing = restored.preprocessing.to_config()
    for name in ("mean", "std"):
        np.testing.assert_allclose(preprocessing.pop(name), expected.pop(name))
    if library == "huggingface":  # timm does not store all other fields
        assert preprocessing == expected


def build(case, library, head, folder):
    """Returns a model with random changes of its weights."""
    if case in PLAIN:
        return randomize(keras_vit.VisionTransformer(**THREE_LAYERS, **PLAIN[case]), 0.3)
    new_head = {"head": "new", "classes": 7, "include_top": True}
    model = load_case(case, folder, **(new_head if head == "new" else {}))
    random = np.random.default_rng(0)
    for weight in model.weights:
        if library == "huggingface" and "clip" in case and "head/bias" in weight.path:
            continue  # transformers supports no bias there
        weight.assign(weight + random.normal(scale=0.1, size=weight.shape))
    return model


# Most files have no head that timm supports, so give their models a new one, too.
WRITTEN = [
    *((case, library, "keep") for case, library in PAIRS),
    *((case, library, "new") for case, library in PAIRS if library == "timm"),
    *((case, library, "keep") for case in PLAIN for library in ("timm", "huggingface")),
]


@pytest.fixture(scope="module")
def torch_python():
    """Returns the path of a Python with torch, timm and transformers."""
    python = os.environ.get("KERAS_VIT_TORCH_PYTHON", sys.executable)
    imports = [python, "-c", "import timm, torch, transformers"]
    if subprocess.run(imports, capture_output=True, check=False).returncode:
        pytest.skip(
            "needs torch, timm and transformers (keras_vit[interop]), here or in "
            "KERAS_VIT_TORCH_PYTHON"
        )
    return python


@pytest.fixture(scope="module")
def written(torch_python, tmp_path_factory):
    """Returns the model and the written folder of each row of `WRITTEN`.

    A folder contains `outputs.npz` or `error.txt` of the other library.
    """
    written = {}
    for row in WRITTEN:
        model = build(*row, tmp_path_factory.mktemp("golden"))
        folder = tmp_path_factory.mktemp("written")
        checkpoints.save(model, folder, format=row[1])
        np.save(folder / "images.npy", images_for(model))
        written[row] = model, folder
    script = Path(__file__).parent / "read_with_torch.py"
    folders = [str(folder) for _, folder in written.values()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [torch_python, script, *folders],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-600:]
    return written


@pytest.mark.full
@pytest.mark.one_backend
@pytest.mark.parametrize("case, library, head", WRITTEN)
def test_other_library_returns_the_same_outputs(case, library, head, written):
    model, folder = written[case, library, head]
    error = folder / "error.txt"
    assert not error.exists(), error.read_text()
    images = images_for(model)
    intermediates = model.intermediates(images)
    outputs = {
        "encoded": intermediates["encoded"],
        "last_block": intermediates["tokens"][-1],
        "output": model(images),
    }
    expected = np.load(folder / "outputs.npz")
    assert expected.files
    for name in expected.files:
        print(name)
        assert_close(outputs[name], expected[name])
