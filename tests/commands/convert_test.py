"""Tests of `keras-vit convert`."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import export
from keras_vit.commands import convert as convert_command
from keras_vit.commands import evaluate, shared_flags

from ..shared import GOLDEN, SIZES, images_for, randomize, read_arrays
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


def _load(path, model):
    """Loads a converted file. Files without an architecture are loaded into `model`."""
    if path.suffix == ".keras":
        return keras.saving.load_model(path)
    if path.suffix == ".h5":
        model.load_weights(path)
    else:
        keras_vit.checkpoints.load(model, path)
    return model


@pytest.mark.parametrize("target", ["model.keras", "model.weights.h5", "model.npz"])
def test_converted_model_matches_the_expected_logits(target, convert, tmp_path):
    source = GOLDEN / "timm_gap.safetensors"
    case = GOLDEN / "timm_gap.io.npz"
    path = tmp_path / target
    # The file stores neither the number of heads nor the shape of the grid.
    printed = convert(source, path, "--num_heads=4", "--grid=4,6", f"--verify={case}")
    assert "loaded: head/kernel (64, 10)" in printed
    assert "largest difference between logits" in printed
    assert f"wrote {path}" in printed
    assert list(tmp_path.iterdir()) == [path]
    expected = read_arrays(case)
    model = randomize(keras_vit.from_pretrained(source, num_heads=4, source_grid=(4, 6)))
    logits = _load(path, model)(expected["inputs"])
    np.testing.assert_allclose(logits, expected["logits"], atol=2e-5)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Returns a model, and the folder of its export with class names."""
    model = keras_vit.from_pretrained(WEIGHTS, num_heads=4)
    folder = tmp_path_factory.mktemp("exported")
    export.saved_model(model, folder, class_names=NAMES, signatures=("tensor",))
    return model, folder


@pytest.mark.parametrize(
    ("form", "other_form", "names"),
    [
        ("timm", "huggingface", {"label_names": NAMES}),
        (
            "huggingface",
            "timm",
            {
                "id2label": {str(i): name for i, name in enumerate(NAMES)},
                "label2id": {name: i for i, name in enumerate(NAMES)},
            },
        ),
    ],
    ids=["timm", "huggingface"],
)
def test_converted_folder_is_the_same_classifier(
    form, other_form, names, exported, convert, parse, tmp_path
):
    model, folder = exported
    assert "10 class names" in convert(folder, tmp_path / "to", f"--format={form}")
    assert names.items() <= json.loads((tmp_path / "to/config.json").read_text()).items()
    parse(evaluate, f"--weights={tmp_path}/to")
    again, details, _ = shared_flags.chosen_model()
    assert details["class_names"] == NAMES
    images = images_for(model)
    np.testing.assert_array_equal(again.predict_on_batch(images), model.predict_on_batch(images))
    convert(tmp_path / "to", tmp_path / "back", f"--format={other_form}")
    assert keras_vit.checkpoints.find_class_names(tmp_path / "back") == NAMES


@pytest.mark.parametrize("form", ["timm", "huggingface"])
def test_no_class_names_are_made_up(form, exported, tmp_path):
    model, _ = exported
    keras_vit.checkpoints.save(model, tmp_path / "unnamed", form)
    assert keras_vit.checkpoints.find_class_names(tmp_path / "unnamed") is None


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


def test_logits_must_differ_by_at_most_the_tolerance(cli, convert, tmp_path):
    expected = read_arrays(GOLDEN / "vit_token.io.npz")
    case = tmp_path / "case.npz"
    target = tmp_path / "x.npz"
    np.savez(case, inputs=expected["inputs"], logits=expected["logits"] + 1e-3)
    done = cli("convert", WEIGHTS, target, f"--verify={case}")
    assert done.returncode == 1
    assert "The logits differ from the expected logits" in done.stderr
    assert not target.exists()
    convert(WEIGHTS, target, f"--verify={case}", "--tolerance=2e-3")


@pytest.mark.parametrize(
    ("inputs", "logits", "message"),
    [
        ((2, 9, 9, 3), (2, 3), "`inputs` must be images of the model"),
        ((2, 8, 8, 3), (2, 4), "`logits` must have the model's output shape"),
    ],
)
def test_rejects_expected_logits_of_another_model(inputs, logits, message, tmp_path):
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), classes=3)
    case = tmp_path / "case.npz"
    np.savez(case, inputs=np.zeros(inputs, "float32"), logits=np.zeros(logits, "float32"))
    with pytest.raises(ValueError, match=message):
        convert_command.verify(model, str(case))


def test_rejects_damaged_verify_file(cli, tmp_path):
    case = tmp_path / "case.npz"
    case.write_bytes((GOLDEN / "vit_token.io.npz").read_bytes()[:-100])
    done = cli("convert", WEIGHTS, tmp_path / "x.npz", f"--verify={case}")
    assert "--verify must be an .npz file with `inputs` and `logits`" in error_line(done)
    assert not (tmp_path / "x.npz").exists()
