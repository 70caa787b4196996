"""Tests of `keras-vit export`."""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver

import keras_vit
from keras_vit import evaluation, export
from keras_vit.commands import export_model

from ..shared import FAMILY_FILES, SIZES, copy_model_folder, randomize, read_arrays
from .conftest import error_line, random_pixels, write_image


@pytest.fixture
def run(cli):
    return lambda *arguments: cli("export", *arguments)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Returns a workdir with a config, an export and `model.keras`."""
    folder = tmp_path_factory.mktemp("run")
    model = keras_vit.VisionTransformer(**{**SIZES, "mlp_dim": 8}, input_shape=(8, 8, 3), classes=3)
    randomize(model)
    (folder / "config.json").write_text("{}")
    export.saved_model(
        model,
        folder / "export",
        class_names="xyz",
        exif=True,
        signatures=("tensor",),
        metrics={"test/accuracy": 0.9},
    )
    shutil.copy(folder / "export/1/assets.extra/model.keras", folder / "model.keras")
    return folder


def test_export_keeps_class_names_and_metrics_of_the_run(workdir, run, tmp_path):
    done = run(
        f"--model={workdir}",
        f"--output={tmp_path}/served",
        "--version=7",
        "--top=2",
        "--signatures=classify",
        "--precision=bfloat16",
    )
    assert done.returncode == 0, done.stderr
    assert "--device=cpu was chosen, because no GPU or TPU was found, only cpu\n" in done.stdout
    assert "faster with TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1" in done.stdout
    assert done.stdout.splitlines()[-1] == f"exported to {tmp_path}/served/7"
    card = export.load_card(tmp_path / "served" / "7")
    assert card["class_names"] == ["x", "y", "z"]
    assert card["metrics"] == {"test/accuracy": 0.9}
    assert card["preprocessing"]["exif"] is True
    assert card["signatures"] == ["classify"]
    signature = tf.saved_model.load(tmp_path / "served" / "7").signatures["classify"]
    assert signature.structured_outputs["scores"].shape.as_list() == [None, 2]


def test_export_converts_keras_file_and_prints_a_report(workdir, run, tmp_path):
    done = run(
        f"--model={workdir}/model.keras", "--format=litert", f"--output={tmp_path}/model.tflite"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/model.tflite: ")
    assert "same class for 100 %" in done.stdout
    assert (tmp_path / "model.tflite").exists()


def test_text_embeddings_export_a_zero_shot_classifier(run, tmp_path):
    weights = copy_model_folder("siglip", tmp_path) / "model.safetensors"
    embeddings = FAMILY_FILES / "siglip_zeroshot.npz"
    served = f"{tmp_path}/served"
    done = run(f"--weights={weights}", f"--text_embeddings={embeddings}", f"--output={served}")
    assert done.returncode == 0, done.stderr
    card = export.load_card(tmp_path / "served" / "1")
    assert card["class_names"] == ["cat", "dog", "a tree", "Ünï"]
    assert card["activation"] == "sigmoid"
    signature = tf.saved_model.load(f"{served}/1").signatures["tensor"]
    expected = read_arrays(embeddings)
    name = next(iter(signature.structured_input_signature[1]))
    outputs = signature(**{name: tf.constant(expected["images"])})
    np.testing.assert_allclose(outputs["probabilities"], expected["probabilities"], atol=1e-5)


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


def test_export_report_uses_the_given_images(workdir, photos, run, tmp_path):
    done = run(f"--model={workdir}", f"--calibrate={photos}", f"--output={tmp_path}/served")
    assert done.returncode == 0, done.stderr
    assert "broken.png cannot be read: it is not an image" in done.stderr
    assert re.search(r"same class for [\d.]+ % of the 6 given images", done.stdout)


def test_int8_export_is_calibrated_on_the_given_images(workdir, photos, run, tmp_path):
    pytest.importorskip("tf2onnx")
    flags = (f"--calibrate={photos}", f"--output={tmp_path}/a.onnx", "--format=onnx_int8")
    done = run(f"--model={workdir}", *flags)
    assert "of the 6 given images" in done.stdout, done.stderr
    assert b"QuantizeLinear" in (tmp_path / "a.onnx").read_bytes()


def test_auto_format_writes_a_single_export(workdir, photos, run, tmp_path):
    done = run(
        f"--model={workdir}", f"--calibrate={photos}", f"--output={tmp_path}/best", "--format=auto"
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\nlitert_int8 +[\d,.]+ ", done.stdout)
    assert "is the fastest accurate format" in done.stdout
    (written,) = tmp_path.iterdir()
    assert written.name in ("best", "best.tflite", "best.onnx")
    assert str(written) in done.stdout.splitlines()[-1] or written.name == "best"


@pytest.mark.usefixtures("removed_flags")
def test_auto_format_may_add_a_version_to_a_folder(tmp_path):
    export_model.define_flags()
    for name in ("auto", "litert"):
        with flagsaver.flagsaver():
            export_model.FLAGS(["export", f"--output={tmp_path}", f"--format={name}"])
            if name == "auto":
                export_model.check_flags()
                continue
            with pytest.raises(ValueError, match="must be a file, not a folder"):
                export_model.check_flags()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output=TMP/a.tflite", "--format=auto"], "auto selects the file extension"),
        (["--output=TMP/a.onnx", "--format=onnx_int8"], "onnx_int8 requires --calibrate"),
        (
            ["--output=TMP/a", "--calibrate=TMP", "--signatures=classify"],
            "--calibrate requires the signature `tensor`",
        ),
        (
            ["--output=TMP/a.tflite", "--format=litert", "--calibrate=PHOTOS/cats/broken.png"],
            "At least one image must be readable",
        ),
        (
            ["--output=TMP/a", "--format=auto", "--name=a", "--precision=bfloat16"],
            "Received: --name, --precision with --format=auto$",
        ),
        ([], "--output is required"),
        (["--output=TMP/a", "--model=", "--variant=ViT_B16"], "--variant requires --weights"),
        (["--output=TMP", "--model=", "--variant=ViT_B17", "--weights=x"], "variant='ViT_B17'"),
        (["--output=WORKDIR/export", "--version=1"], "never overwritten"),
    ],
)
def test_rejects_bad_flags(arguments, message, workdir, photos, run, tmp_path):
    for name, folder in (("TMP", tmp_path), ("WORKDIR", workdir), ("PHOTOS", photos)):
        arguments = [argument.replace(name, str(folder)) for argument in arguments]
    assert re.search(message, error_line(run(f"--model={workdir}", *arguments)))
    assert list(tmp_path.iterdir()) == []


def test_rejects_flags_of_saved_models_with_another_format(workdir, run, tmp_path):
    flags = {
        "version": "1",
        "name": "a",
        "signatures": "tensor",
        "precision": "float32",
        "top": "5",
        "class_names": "published",
        "exif": "true",
        "max_megapixels": "1",
        "max_batch_size": "8",
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    done = run(f"--model={workdir}", f"--output={tmp_path}/a.onnx", "--format=onnx", *words)
    received = error_line(done).partition("Received: ")[2]
    assert received.endswith(" with --format=onnx")
    assert set(re.findall(r"--(\w+)", received)) == {*flags, "format"}


def test_masked_patch_model_is_not_a_classifier(tmp_path):
    sizes = {**SIZES, "input_shape": (8, 8, 3), "classes": 3}
    model = keras_vit.MaskedPatchVisionTransformer(**sizes, classifier="token_unpooled")
    with pytest.raises(ValueError, match="not a classifier"):
        export.saved_model(model, tmp_path)
    with pytest.raises(ValueError, match="not a classifier"):
        evaluation.evaluate(model, ["top1:digits"])
