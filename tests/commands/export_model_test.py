"""Tests of `keras-vit export`."""

import importlib.util
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import evaluation, export

from ..shared import ROOT, SIZES, randomize


@pytest.fixture
def run(scripts):
    return lambda *arguments: scripts.run("-m", "keras_vit", "export", *arguments, cwd=ROOT)


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
    golden = ROOT / "tests/golden/families"
    shutil.copy(golden / "siglip.safetensors", tmp_path / "model.safetensors")
    shutil.copy(golden / "siglip.config.json", tmp_path / "config.json")
    flags = [f"--text_embeddings={golden / 'siglip_zeroshot.npz'}", f"--output={tmp_path}/served"]
    done = run(f"--weights={tmp_path}/model.safetensors", *flags)
    assert done.returncode == 0, done.stderr
    card = export.load_card(tmp_path / "served" / "1")
    assert card["class_names"] == ["cat", "dog", "a tree", "Ünï"]
    assert card["activation"] == "sigmoid"
    served = tf.saved_model.load(tmp_path / "served" / "1").signatures["tensor"]
    expected = np.load(golden / "siglip_zeroshot.npz")
    name = next(iter(served.structured_input_signature[1]))
    outputs = served(**{name: tf.constant(expected["images"])})
    np.testing.assert_allclose(outputs["probabilities"], expected["probabilities"], atol=1e-5)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Returns a folder with a text file and a subfolder. The subfolder has six images and one
    broken image."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "cats").mkdir()
    random = np.random.default_rng(0)
    for i in range(6):
        keras.utils.save_img(
            folder / f"cats/{i}.png", random.integers(0, 255, (20, 30, 3)), scale=False
        )
    (folder / "cats/broken.png").write_bytes(b"not an image")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_export_report_uses_the_given_images(workdir, photos, run, tmp_path):
    flags = [f"--model={workdir}", f"--calibrate={photos}"]
    for output, file_format in (
        ("served", "saved_model"),
        ("a.tflite", "litert_int8"),
        ("a.onnx", "onnx_int8"),
    ):
        if file_format == "onnx_int8" and not importlib.util.find_spec("tf2onnx"):
            continue
        done = run(*flags, f"--output={tmp_path}/{output}", f"--format={file_format}")
        assert done.returncode == 0, done.stderr
        assert "broken.png cannot be read: it is not an image in a known format" in done.stderr
        assert re.search(
            r"same class for [\d.]+ % of the 6 given images, mean cosine", done.stdout
        ), done.stdout


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--output=TMP/a.tflite", "--model=WORKDIR", "--format=auto"],
            "auto selects the file extension",
        ),
        (
            ["--output=TMP/a/b", "--model=WORKDIR", "--format=auto"],
            "folder of --output must exist and be writable",
        ),
        (
            ["--output=TMP/a.onnx", "--model=WORKDIR", "--format=onnx_int8"],
            "onnx_int8 requires --calibrate",
        ),
        (
            ["--output=TMP/a", "--model=WORKDIR", "--calibrate=TMP"],
            "contains no images .*Received: TMP",
        ),
        (
            ["--output=TMP/a", "--model=WORKDIR", "--calibrate=TMP", "--signatures=classify"],
            "--calibrate requires the signature `tensor` .*signatures=classify",
        ),
        (
            [
                "--output=TMP/a.tflite",
                "--format=litert",
                "--model=WORKDIR",
                "--calibrate=PHOTOS/cats/broken.png",
            ],
            "At least one image must be readable; .*Received: calibrate='PHOTOS/cats/broken.png'",
        ),
        (
            [
                "--output=TMP/a.tflite",
                "--model=WORKDIR",
                "--format=litert_int8",
                "--version=1",
                "--signatures=tensor",
            ],
            "require --format=saved_model. Received: --version, --signatures with "
            "--format=litert_int8",
        ),
        (
            [
                *("--output=TMP/a.onnx", "--model=WORKDIR", "--format=onnx", "--name=a", "--top=5"),
                *("--precision=float32", "--max_megapixels=1", "--max_batch_size=8"),
            ],
            "Received: --name, --precision, --top, --max_megapixels, --max_batch_size with "
            "--format=onnx$",
        ),
        (
            [
                "--output=TMP/a",
                "--model=WORKDIR",
                "--format=auto",
                "--name=a",
                "--precision=bfloat16",
            ],
            "Received: --name, --precision with --format=auto$",
        ),
        (
            [
                "--output=TMP/a.onnx",
                "--model=WORKDIR",
                "--format=onnx",
                "--class_names=published",
                "--exif",
            ],
            "Received: --class_names, --exif with --format=onnx$",
        ),
        (["--model=WORKDIR"], "--output is required"),
        (
            ["--output=TMP", "--variant=ViT_B17", "--weights=x"],
            "--variant must be .*Received: variant='ViT_B17'",
        ),
        (
            ["--output=TMP", "--model=nothing.keras"],
            "does not exist.*Received: model='nothing.keras'",
        ),
        (["--output=WORKDIR/export", "--model=WORKDIR", "--version=1"], "never overwritten"),
    ],
)
def test_bad_input_exits_with_an_explanation(arguments, message, workdir, photos, run, tmp_path):
    for name, folder in (("TMP", tmp_path), ("WORKDIR", workdir), ("PHOTOS", photos)):
        arguments = [argument.replace(name, str(folder)) for argument in arguments]
        message = message.replace(name, str(folder))
    done = run(*arguments)
    assert list(tmp_path.iterdir()) == []
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert re.search(message, done.stderr.strip().splitlines()[-1]), done.stderr


def test_masked_patch_model_is_not_a_classifier(tmp_path):
    sizes = {**SIZES, "classes": 3}
    model = keras_vit.MaskedPatchVisionTransformer(
        **sizes, input_shape=(8, 8, 3), classifier="token_unpooled", name="masked"
    )
    message = (
        "not a classifier and cannot be exported; .*--config.weights=weights.npz. Received: "
        "model='masked'"
    )
    with pytest.raises(ValueError, match=message):
        export.saved_model(model, tmp_path)
    with pytest.raises(ValueError, match=message):
        evaluation.evaluate(model, ["top1:digits"])
