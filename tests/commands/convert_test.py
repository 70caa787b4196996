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

from ..shared import GOLDEN, GOLDEN_SIZES, ROOT, assert_same_arrays, images_for, read_arrays


@pytest.fixture
def convert(scripts):
    """Runs `keras-vit convert`; returns the exit code and stdout or, after a failure, the last line
    of stderr."""

    def run(source, target, *arguments):
        done = scripts.run("-m", "keras_vit", "convert", source, target, *arguments, cwd=ROOT)
        return done.returncode, done.stderr.strip().split("\n")[
            -1
        ] if done.returncode else done.stdout

    return run


@pytest.mark.parametrize(
    "source, case, flags, target",
    [
        ("timm_token.safetensors", "timm_token", ["--num_heads=4"], "model.keras"),
        ("timm_gap.safetensors", "timm_gap", ["--num_heads=4", "--grid=4,6"], "model.npz"),
        ("hf_token.safetensors", "hf_token", ["--num_heads=4"], "model.weights.h5"),
        ("bigvision_map.ckpt.npz", "bigvision_map", [], "model.npz"),
        ("bigvision_tok_sincos.ckpt.npz", "bigvision_tok_sincos", ["--grid=4,4"], "model.keras"),
        ("hybrid_2stage.ckpt.npz", "hybrid_2stage", ["--tolerance=2e-4"], "model.npz"),
    ],
)
def test_converted_model_matches_the_expected_logits(
    source, case, flags, target, convert, tmp_path
):
    code, printed = convert(
        GOLDEN / source, tmp_path / target, f"--verify={GOLDEN / case}.io.npz", *flags
    )
    assert code == 0, printed
    assert "arrays loaded" in printed
    assert "loaded: head/kernel (64, 10)" in printed
    assert "largest difference between logits" in printed
    assert f"wrote {tmp_path / target}" in printed
    assert [path.name for path in tmp_path.iterdir()] == [target]
    with np.load(GOLDEN / f"{case}.io.npz") as io:
        inputs = io["inputs"]
        logits = io["logits"]
    if target.endswith(".keras"):
        model = keras.saving.load_model(tmp_path / target)
    else:
        constructor, arguments = keras_vit.checkpoints.infer_architecture(
            GOLDEN / source, num_heads=4, grid=_grid(flags)
        )
        model = getattr(keras_vit, constructor)(**arguments)
        model.load_weights(tmp_path / target) if "h5" in target else keras_vit.checkpoints.load(
            model, tmp_path / target
        )
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(inputs)), logits, atol=2e-4)


def _grid(flags):
    grids = [flag.removeprefix("--grid=") for flag in flags if flag.startswith("--grid=")]
    return tuple(map(int, grids[0].split(","))) if grids else None


def test_convert_writes_the_layout_of_vit_jax(convert, tmp_path):
    model = keras_vit.VisionTransformer(
        **GOLDEN_SIZES, input_shape=(32, 32, 3), weights=GOLDEN / "vit_token.ckpt.npz"
    )
    model.save(tmp_path / "model.keras")
    assert convert(tmp_path / "model.keras", tmp_path / "back.npz")[0] == 0
    back = read_arrays(tmp_path / "back.npz")
    assert_same_arrays(back, read_arrays(GOLDEN / "vit_token.ckpt.npz"))


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
    model = keras_vit.from_pretrained(GOLDEN / "vit_token.ckpt.npz", num_heads=4)
    model.preprocessing = keras_vit.Preprocessing(**preprocessing)
    set_logits_activation(model, "sigmoid")
    folder = tmp_path_factory.mktemp("exported")
    export.saved_model(model, folder, class_names=NAMES, signatures=("tensor",))
    return model, folder


NAMES = ["cat", "dog", "crane, bird", "café", "e", "f", "g", "h", "i", "LABEL_9"]


@pytest.mark.parametrize("form", ["timm", "huggingface"])
def test_converted_folder_keeps_class_names(form, exported, convert, tmp_path, monkeypatch):
    model, folder = exported
    code, printed = convert(folder, tmp_path / "to", f"--format={form}")
    assert code == 0 and "10 class names" in printed, printed
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
    # Converting to the other format keeps the class names.
    other = {"timm": "huggingface", "huggingface": "timm"}[form]
    assert convert(tmp_path / "to", tmp_path / "back", f"--format={other}")[0] == 0
    assert keras_vit.checkpoints.find_class_names(tmp_path / "back") == NAMES


def test_class_names_flag_sets_the_class_names(convert, tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    source = GOLDEN / "vit_token.ckpt.npz"
    names = f"--class_names={tmp_path / 'names.txt'}"
    for arguments, expected in (([], None), ([names], NAMES)):
        code, printed = convert(
            source, tmp_path / "to", "--format=huggingface", "--num_heads=4", *arguments
        )
        assert code == 0, printed
        assert keras_vit.checkpoints.find_class_names(tmp_path / "to") == expected
    code, printed = convert(source, tmp_path / "x.npz", "--num_heads=4", names)
    assert code == 2
    assert "--class_names requires --format" in printed


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["vit_token.ckpt.npz", "x.h5"],
            "TARGET must end in .keras, .weights.h5, .npz; --format=timm",
        ),
        (["vit_token.ckpt.npz", "x.npz", "--format=timm"], "With --format, TARGET is a folder"),
        (["timm_token.safetensors", "x.npz"], "`num_heads` is required"),
        (["timm_gap.safetensors", "x.npz", "--num_heads=4"], "`input_shape` is required"),
        (["missing.npz", "x.npz"], "The file does not exist"),
        (["vit_token.ckpt.npz", "nowhere/x.npz"], "cannot be written"),
        (["vit_token.ckpt.npz", "nowhere/x.keras"], "cannot be written"),
        (["vit_token.ckpt.npz", "x.npz", "--grid=4"], "--grid must be 2 positive integers"),
    ],
)
def test_bad_input_prints_error_and_exits_with_code_2(arguments, message, convert, tmp_path):
    source, target, *flags = arguments
    code, printed = convert(GOLDEN / source, tmp_path / target, *flags)
    assert code == 2
    assert printed.startswith("error: ")
    assert message in printed
    assert "\n" not in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["model.keras", "."])
def test_rejects_flags_for_weights_with_a_whole_model(source, convert, tmp_path):
    (tmp_path / "model.keras").touch()
    flags = ["--num_heads=4", "--grid=4,4", "--channels=sum", "--input_shape=8,8,3"]
    code, printed = convert(tmp_path / source, tmp_path / "x.npz", *flags)
    assert code == 2
    assert "Received: --input_shape, --num_heads, --grid, --channels with " in printed
    assert "Only weights" in printed


def test_convert_with_wrong_logits_writes_no_model(convert, tmp_path):
    with np.load(GOLDEN / "vit_token.io.npz") as io:
        np.savez(tmp_path / "case.npz", inputs=io["inputs"], logits=io["logits"] + 1e-3)
    code, printed = convert(
        GOLDEN / "vit_token.ckpt.npz", tmp_path / "x.npz", f"--verify={tmp_path / 'case.npz'}"
    )
    assert code == 1
    assert "The logits differ from the expected logits" in printed
    assert not (tmp_path / "x.npz").exists()


def test_rejects_damaged_verify_file(convert, tmp_path):
    whole = (GOLDEN / "vit_token.io.npz").read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-30], b"PK\x05\x06" + bytes(18), b""):
        (tmp_path / "case.npz").write_bytes(content)
        code, printed = convert(
            GOLDEN / "vit_token.ckpt.npz", tmp_path / "x.npz", f"--verify={tmp_path / 'case.npz'}"
        )
        assert code == 2
        assert "--verify must be an .npz file with `inputs` and `logits`" in printed
    assert not (tmp_path / "x.npz").exists()
