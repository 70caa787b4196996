"""Tests of `keras-vit convert`: formats, logits, class names and errors."""

import json
import types

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import export
from keras_vit.commands import shared_flags
from keras_vit.models.any_model import logits_activation_of, set_logits_activation

from ..shared import GOLDEN, GOLDEN_SIZES, assert_same_arrays, images_for, read_arrays
from .conftest import error_line

WEIGHTS = GOLDEN / "vit_token.ckpt.npz"
NAMES = ["cat", "dog", "crane, bird", "café", "e", "f", "g", "h", "i", "LABEL_9"]


@pytest.fixture
def convert(cli):
    """Returns a function that runs `keras-vit convert` and returns its output."""

    def run(*arguments):
        done = cli("convert", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    ("source", "case", "flags", "grid", "target"),
    [
        ("timm_gap.safetensors", "timm_gap", ["--num_heads=4"], (4, 6), "model.npz"),
        ("hf_token.safetensors", "hf_token", ["--num_heads=4"], None, "model.weights.h5"),
        ("bigvision_tok_sincos.ckpt.npz", "bigvision_tok_sincos", [], (4, 4), "model.keras"),
        ("hybrid_2stage.ckpt.npz", "hybrid_2stage", ["--tolerance=2e-4"], None, "model.npz"),
    ],
)
def test_converted_model_matches_the_expected_logits(
    source, case, flags, grid, target, convert, tmp_path
):
    path = tmp_path / target
    if grid:
        flags = [*flags, f"--grid={grid[0]},{grid[1]}"]
    printed = convert(GOLDEN / source, path, f"--verify={GOLDEN / case}.io.npz", *flags)
    assert "loaded: head/kernel (64, 10)" in printed
    assert "largest difference between logits" in printed
    assert f"wrote {path}" in printed
    assert list(tmp_path.iterdir()) == [path]
    if path.suffix == ".keras":
        model = keras.saving.load_model(path)
    else:
        constructor, arguments = keras_vit.checkpoints.infer_architecture(
            GOLDEN / source, num_heads=4, grid=grid
        )
        model = getattr(keras_vit, constructor)(**arguments)
        if path.suffix == ".h5":
            model.load_weights(path)
        else:
            keras_vit.checkpoints.load(model, path)
    expected = read_arrays(f"{GOLDEN / case}.io.npz")
    logits = keras.ops.convert_to_numpy(model(expected["inputs"]))
    np.testing.assert_allclose(logits, expected["logits"], atol=2e-4)


def test_convert_writes_the_layout_of_vit_jax(convert, tmp_path):
    model = keras_vit.VisionTransformer(**GOLDEN_SIZES, input_shape=(32, 32, 3), weights=WEIGHTS)
    model.save(tmp_path / "model.keras")
    convert(tmp_path / "model.keras", tmp_path / "back.npz")
    back = read_arrays(tmp_path / "back.npz")
    assert_same_arrays(back, read_arrays(WEIGHTS))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Returns a sigmoid model with custom preprocessing, and the folder of its export with class
    names."""
    preprocessing = {
        "mean": [10, 20, 30],
        "std": [50, 60, 70],
        "resize": "shorter_side",
        "interpolation": "bicubic",
    }
    model = keras_vit.from_pretrained(WEIGHTS, num_heads=4)
    model.preprocessing = keras_vit.Preprocessing(**preprocessing)
    set_logits_activation(model, "sigmoid")
    folder = tmp_path_factory.mktemp("exported")
    export.saved_model(model, folder, class_names=NAMES, signatures=("tensor",))
    return model, folder


@pytest.mark.parametrize("form", ["timm", "huggingface"])
def test_converted_folder_keeps_class_names(form, exported, convert, tmp_path, monkeypatch):
    model, folder = exported
    assert "10 class names" in convert(folder, tmp_path / "to", f"--format={form}")
    config = json.loads((tmp_path / "to" / "config.json").read_text())
    if form == "timm":
        assert config["label_names"] == NAMES
    else:
        assert config["id2label"]["2"] == "crane, bird"
        assert config["label2id"]["crane, bird"] == 2
    assert keras_vit.checkpoints.find_class_names(tmp_path / "to") == NAMES
    given = types.SimpleNamespace(
        model="", variant="", weights=str(tmp_path / "to"), text_embeddings="", classes=""
    )
    monkeypatch.setattr(shared_flags, "FLAGS", given)
    again, details, _ = shared_flags.chosen_model()
    assert details["class_names"] == NAMES
    assert logits_activation_of(again) == "sigmoid"
    np.testing.assert_allclose(again.preprocessing.mean, model.preprocessing.mean, rtol=1e-6)
    images = images_for(model)
    np.testing.assert_array_equal(again.predict_on_batch(images), model.predict_on_batch(images))
    # Without class names, none are made up.
    keras_vit.checkpoints.save(model, tmp_path / "unnamed", form)
    assert keras_vit.checkpoints.find_class_names(tmp_path / "unnamed") is None
    # Converting to the other format keeps the class names.
    other = {"timm": "huggingface", "huggingface": "timm"}[form]
    convert(tmp_path / "to", tmp_path / "back", f"--format={other}")
    assert keras_vit.checkpoints.find_class_names(tmp_path / "back") == NAMES


def test_class_names_flag_sets_the_class_names(convert, cli, tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    flags = (f"--class_names={tmp_path / 'names.txt'}", "--num_heads=4")
    convert(WEIGHTS, tmp_path / "to", "--format=huggingface", *flags)
    assert keras_vit.checkpoints.find_class_names(tmp_path / "to") == NAMES
    done = cli("convert", WEIGHTS, tmp_path / "x.npz", *flags)
    assert "--class_names requires --format" in error_line(done)


@pytest.mark.parametrize(
    ("source", "target", "flags", "message"),
    [
        ("vit_token.ckpt.npz", "x.h5", [], "TARGET must end in .keras, .weights.h5, .npz"),
        ("vit_token.ckpt.npz", "x.npz", ["--format=timm"], "With --format, TARGET is a folder"),
        ("timm_token.safetensors", "x.npz", [], "`num_heads` is required"),
        ("vit_token.ckpt.npz", "nowhere/x.keras", [], "cannot be written"),
        ("vit_token.ckpt.npz", "x.npz", ["--grid=4"], "--grid must be 2 positive integers"),
        ("vit_token.ckpt.npz", "x.npz", ["--tolerance=1"], "--tolerance requires --verify"),
    ],
)
def test_rejects_bad_arguments(source, target, flags, message, cli, tmp_path):
    done = cli("convert", GOLDEN / source, tmp_path / target, *flags)
    assert message in error_line(done)
    assert list(tmp_path.iterdir()) == []


def test_rejects_flags_for_weights_with_a_whole_model(cli, tmp_path):
    (tmp_path / "model.keras").touch()
    flags = ["--num_heads=4", "--grid=4,4", "--channels=sum", "--input_shape=8,8,3"]
    line = error_line(cli("convert", tmp_path / "model.keras", tmp_path / "x.npz", *flags))
    assert "Received: --input_shape, --num_heads, --grid, --channels with " in line


def test_convert_with_wrong_logits_writes_no_model(cli, tmp_path):
    expected = read_arrays(GOLDEN / "vit_token.io.npz")
    case = tmp_path / "case.npz"
    np.savez(case, inputs=expected["inputs"], logits=expected["logits"] + 1e-3)
    done = cli("convert", WEIGHTS, tmp_path / "x.npz", f"--verify={case}")
    assert done.returncode == 1
    assert "The logits differ from the expected logits" in done.stderr
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize("share", [0, 0.5])
def test_rejects_damaged_verify_file(share, cli, tmp_path):
    content = (GOLDEN / "vit_token.io.npz").read_bytes()
    case = tmp_path / "case.npz"
    case.write_bytes(content[: int(share * len(content))])
    done = cli("convert", WEIGHTS, tmp_path / "x.npz", f"--verify={case}")
    assert "--verify must be an .npz file with `inputs` and `logits`" in error_line(done)
    assert not (tmp_path / "x.npz").exists()
