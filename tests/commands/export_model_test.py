"""Tests of `keras-vit export`."""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import export
from keras_vit.commands import export_model

from ..shared import FAMILY_FILES, SIZES, copy_model_folder, randomize, read_arrays
from .conftest import error_line, random_pixels, write_image

# A value of each flag that applies only to SavedModels.
SERVING_FLAGS = {
    "version": "1",
    "name": "a",
    "signatures": "tensor",
    "precision": "float32",
    "top": "5",
    "class_names": "published",
    "exif": "true",
    "max_megapixels": "1",
    "device": "cpu",
    "max_batch_size": "8",
}


@pytest.fixture
def run(cli):
    """Returns a function that runs `keras-vit export` and returns its output."""

    def run_export(*arguments):
        done = cli("export", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_export


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Returns a workdir with a config, an export and `model.keras`."""
    folder = tmp_path_factory.mktemp("run")
    model = keras_vit.VisionTransformer(**{**SIZES, "mlp_dim": 8}, input_shape=(8, 8, 3), classes=3)
    (folder / "config.json").write_text("{}")
    export.saved_model(
        randomize(model),
        folder / "export",
        class_names="xyz",
        exif=True,
        signatures=("tensor",),
        metrics={"test/accuracy": 0.9},
    )
    shutil.copy(folder / "export/1/assets.extra/model.keras", folder / "model.keras")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Returns a folder with a text file and a subfolder. The subfolder has six images and one
    broken image."""
    folder = tmp_path_factory.mktemp("photos")
    for i in range(6):
        write_image(folder / f"cats/{i}.png", random_pixels(20, 30, 3, seed=i))
    (folder / "cats/broken.png").write_bytes(b"not an image")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_export_keeps_class_names_and_metrics_of_the_run(workdir, run, tmp_path):
    flags = ("--version=7", "--top=2", "--signatures=classify", "--precision=bfloat16")
    output = run(f"--model={workdir}", f"--output={tmp_path}/served", *flags)
    assert "--device=cpu was chosen, because no GPU or TPU was found\n" in output
    assert "faster with TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1" in output
    path = f"{tmp_path}/served/7"
    assert output.splitlines()[-1] == f"exported to {path}"
    card = export.load_card(path)
    assert card["class_names"] == ["x", "y", "z"]
    assert card["metrics"] == {"test/accuracy": 0.9}
    assert card["preprocessing"]["exif"] is True
    assert card["signatures"] == ["classify"]
    signature = tf.saved_model.load(path).signatures["classify"]
    assert signature.structured_outputs["scores"].shape.as_list() == [None, 2]


def test_export_converts_keras_file_and_prints_a_report(workdir, run, tmp_path):
    path = tmp_path / "model.tflite"
    output = run(f"--model={workdir}/model.keras", "--format=litert", f"--output={path}")
    assert output.startswith(f"{path}: ")
    assert "same class for 100 %" in output
    assert path.exists()


def test_text_embeddings_export_a_zero_shot_classifier(run, tmp_path):
    weights = copy_model_folder("siglip", tmp_path) / "model.safetensors"
    embeddings = FAMILY_FILES / "siglip_zeroshot.npz"
    served = f"{tmp_path}/served"
    run(f"--weights={weights}", f"--text_embeddings={embeddings}", f"--output={served}")
    assert export.load_card(f"{served}/1")["class_names"] == ["cat", "dog", "a tree", "Ünï"]
    signature = tf.saved_model.load(f"{served}/1").signatures["tensor"]
    expected = read_arrays(embeddings)
    probabilities = signature(images=expected["images"])["probabilities"]
    np.testing.assert_allclose(probabilities, expected["probabilities"], atol=1e-5)


def test_export_report_uses_the_given_images(workdir, photos, cli, tmp_path):
    flags = (f"--model={workdir}", f"--calibrate={photos}", f"--output={tmp_path}/served")
    done = cli("export", *flags)
    assert "broken.png cannot be read: it is not an image" in done.stderr
    assert re.search(r"outputs for the 6 given images .* same class for [\d.]+ %", done.stdout)


def test_int8_export_is_calibrated_on_the_given_images(workdir, photos, run, tmp_path):
    pytest.importorskip("tf2onnx")
    flags = (f"--calibrate={photos}", f"--output={tmp_path}/a.onnx", "--format=onnx_int8")
    assert "outputs for the 6 given images" in run(f"--model={workdir}", *flags)
    assert b"QuantizeLinear" in (tmp_path / "a.onnx").read_bytes()


def test_auto_format_writes_a_single_export(workdir, photos, run, tmp_path):
    flags = (f"--calibrate={photos}", f"--output={tmp_path}/best", "--format=auto")
    output = run(f"--model={workdir}", *flags)
    assert re.search(r"\nlitert_int8 +[\d,.]+ ", output)
    assert "is the fastest accurate format" in output
    (written,) = tmp_path.iterdir()
    assert written.name in ("best", "best.tflite", "best.onnx")
    assert str(written) in output


@pytest.fixture
def run_here(parse, monkeypatch):
    """Returns a function that runs `keras-vit export` for a model in this process."""

    def run_export(model, *arguments):
        monkeypatch.setattr(export_model.shared_flags, "chosen_model", lambda: (model, {}, ""))
        parse(export_model, *arguments)
        export_model.main()

    return run_export


def test_backbone_is_calibrated_on_images(photos, run_here, tmp_path):
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), include_top=False)
    flags = (f"--calibrate={photos}", f"--output={tmp_path}/a.tflite")
    run_here(model, "--format=litert_int8", *flags)
    assert (tmp_path / "a.tflite").exists()
    with pytest.raises(ValueError, match="returns features"):
        run_here(model, "--format=auto", f"--output={tmp_path}/auto")


def test_fastest_saved_model_of_masks_is_written(photos, run_here, tmp_path, monkeypatch, capsys):
    model = keras_vit.models.LinearSegmenter(**SIZES, input_shape=(16, 16, 3), classes=3)
    monkeypatch.setattr(export_model.choosing, "FILE_FORMATS", {})
    run_here(model, "--format=auto", f"--calibrate={photos}", f"--output={tmp_path}")
    assert f"exported to {tmp_path}/1\n" in capsys.readouterr().out


def test_default_signatures_are_those_of_the_model(run_here, tmp_path):
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 5), classes=3)
    run_here(model, f"--output={tmp_path}")
    assert export.load_card(f"{tmp_path}/1")["signatures"] == ["tensor"]


def test_auto_format_may_add_a_version_to_a_folder(parse, tmp_path):
    parse(export_model, f"--output={tmp_path}", "--format=auto")
    export_model.check_flags()
    parse(export_model, f"--output={tmp_path}", "--format=litert")
    with pytest.raises(ValueError, match="must be a file, not a folder"):
        export_model.check_flags()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output=a.tflite", "--format=auto"], "auto selects the file extension"),
        (["--output=a.onnx", "--format=onnx_int8"], "onnx_int8 requires --calibrate"),
        (
            ["--output=a", "--calibrate=photos", "--signatures=classify"],
            "--calibrate requires the signature `tensor`",
        ),
        (
            ["--output=a", "--format=auto", "--name=a", "--precision=bfloat16"],
            "Received: --name, --precision with --format=auto$",
        ),
        ([], "--output is required"),
        (["--output=a", "--variant=ViT_B16"], "--variant requires --weights"),
    ],
)
def test_rejects_flags_that_do_not_fit_together(arguments, message, parse):
    parse(export_model, *arguments)
    with pytest.raises(ValueError, match=message):
        export_model.check_flags()


def test_rejects_flags_of_saved_models_with_another_format(parse):
    flags = [f"--{name}={value}" for name, value in SERVING_FLAGS.items()]
    parse(export_model, "--output=a.onnx", "--format=onnx", *flags)
    with pytest.raises(ValueError, match="with --format=onnx$") as raised:
        export_model.check_flags()
    received = str(raised.value).partition("Received: ")[2]
    assert set(re.findall(r"--(\w+)", received)) == {*SERVING_FLAGS, "format"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model=WORKDIR", "--output=TMP/a", "--calibrate=PHOTOS/cats/broken.png"],
            "At least one image must be readable",
        ),
        (["--output=TMP", "--variant=ViT_B17", "--weights=x"], "variant='ViT_B17'"),
        (["--model=WORKDIR", "--output=WORKDIR/export", "--version=1"], "never overwritten"),
    ],
)
def test_rejected_export_writes_nothing(arguments, message, workdir, photos, cli, tmp_path):
    for name, folder in (("TMP", tmp_path), ("WORKDIR", workdir), ("PHOTOS", photos)):
        arguments = [argument.replace(name, str(folder)) for argument in arguments]
    assert message in error_line(cli("export", *arguments))
    assert list(tmp_path.iterdir()) == []


def test_model_of_masked_patches_is_not_exported(tmp_path):
    sizes = {**SIZES, "input_shape": (8, 8, 3), "classes": 3}
    model = keras_vit.MaskedPatchVisionTransformer(**sizes, classifier="token_unpooled")
    with pytest.raises(ValueError, match="not a classifier"):
        export.saved_model(model, tmp_path)
