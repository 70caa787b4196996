"""Tests of the commands `verify-data` and `show-batch`, and of a check of image lists."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from keras_vit import data

from ..shared import ROOT, SIZES


@pytest.fixture
def photos(tmp_path):
    for number, name in enumerate(["a/0", "a/1", "b/0", "b/1"]):
        path = tmp_path / "photos" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = np.random.default_rng(number).integers(0, 256, (20, 24, 3)).astype(np.uint8)
        path.write_bytes(tf.io.encode_jpeg(image).numpy())
    return tmp_path / "photos"


@pytest.fixture
def run(scripts):
    """Returns a function that runs a command and returns `(exit code, standard output, error
    lines)`."""

    def run(command, *arguments):
        done = scripts.run("-m", "keras_vit", command, *arguments, cwd=ROOT)
        return (
            done.returncode,
            done.stdout,
            [line for line in done.stderr.splitlines() if line.startswith("error: ")],
        )

    return run


def test_verify_data_exits_with_code_1_for_bad_data(photos, run, tmp_path):
    assert run("verify-data", f"--data={photos}")[0] == 0
    (photos / "a" / "2.jpg").write_bytes((photos / "a" / "1.jpg").read_bytes())
    (photos / "b" / "2.jpg").write_text("no image")
    (photos / "c").mkdir()
    code, printed, _ = run("verify-data", f"--data={photos}", f"--output={tmp_path}/report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    bad = str(photos / "b" / "2.jpg")
    assert code == 1
    assert report["bad"] == [bad]
    assert list(report["reasons"]) == [bad]
    assert report["empty_classes"] == ["c"]
    assert report["duplicates"] == [[str(photos / "a" / "1.jpg"), str(photos / "a" / "2.jpg")]]
    assert f"bad: {bad}: " in printed
    assert "no examples: c" in printed
    assert "duplicates: " in printed


def test_verify_data_reads_all_splits_of_a_folder(photos, run, tmp_path):
    (tmp_path / "both").mkdir()
    shutil.copytree(photos, tmp_path / "both" / "train")
    shutil.copytree(photos / "a", tmp_path / "both" / "val" / "a")
    code, printed, _ = run(
        "verify-data", f"--data={tmp_path}/both", f"--output={tmp_path}/report.json"
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert code == 1
    assert report["examples"] == 6
    assert report["bad"] == []
    assert report["empty_classes"] == ["val: b"]
    assert "no examples: val: b" in printed
    assert [[name.split(":")[0] for name in names] for names in report["duplicates"]] == [
        ["train", "val"]
    ] * 2


def test_verify_data_accepts_a_training_config(photos, run):
    config = [
        "--config=small_data:ViT-Ti/16,folder",
        f"--config.data.path={photos}",
        "--config.data.test_share=0.5",
    ]
    code, printed, errors = run("verify-data", *config)
    assert code == 0 and "4 examples: 0 bad" in printed, errors
    code, printed, errors = run("verify-data", *config, "--config.data.max_megapixels=0.0001")
    assert code == 1 and "4 examples: 4 bad" in printed and "bad: train: " in printed, errors


def test_verify_data_converts(photos, run, tmp_path):
    Image.new("L", (8, 8)).save(photos / "a" / "3.tif")
    Image.new("L", (8, 8)).save(photos / "b" / "3.png")
    code, printed, _ = run("verify-data", f"--data={photos}")
    assert code == 0
    assert "not read: 1 HEIC, AVIF or TIFF" in printed
    assert "gray: 1 files" in printed
    code, printed, _ = run("verify-data", f"--data={photos}", f"--convert={tmp_path}/new")
    assert code == 0
    assert "1 files converted, 0 skipped" in printed
    assert (tmp_path / "new/a/3.tif.png").exists()
    code, printed, _ = run("verify-data", f"--data={photos}", f"--convert={tmp_path}/new")
    assert code == 1
    assert "3.tif.png exists" in printed


def test_rejects_labels_missing_in_the_training_list(photos, tmp_path):
    (tmp_path / "train.csv").write_text("a/0.jpg,a\na/1.jpg,a\nb/0.jpg,b\n")
    (tmp_path / "test.csv").write_text("b/1.jpg,bb\n")
    lists = {"train_split": f"{tmp_path}/train.csv", "test_split": f"{tmp_path}/test.csv"}
    with pytest.raises(ValueError, match=r"among the 2 classes.*\['bb'\]"):
        data.load_splits({"name": "list", "path": str(photos), **lists})


def test_missing_source_is_a_one_line_error(run, tmp_path):
    code, _, errors = run("verify-data", f"--data={tmp_path}/nowhere")
    assert code == 2
    assert len(errors) == 1
    assert "--data must be a folder" in errors[0]


def test_show_batch_writes_a_figure(photos, run, tmp_path):
    pytest.importorskip("matplotlib")
    sizes = {**SIZES, "input_shape": (16, 16, 3)}
    model = keras_vit.VisionTransformer(
        **sizes, preprocessing=keras_vit.Preprocessing(mean=(9,) * 3, std=(5,) * 3)
    )
    keras_vit.checkpoints.save(model, tmp_path / "vit.npz")
    fields = ["name=folder", f"path={photos}", "test_share=0.5", "image_size=16", "mixup_alpha=0.5"]
    flags = [
        *(f"--config.data.{f}" for f in fields),
        f"--config.weights={tmp_path}/vit.npz",
        "--batch_size=2",
    ]
    code, printed, errors = run("show-batch", *flags, f"--output={tmp_path}/out.png")
    assert code == 0 and "out.png" in printed, errors
    assert "images are normalized with mean=(9" in printed
    picture = tf.io.decode_png((tmp_path / "out.png").read_bytes())
    assert min(picture.shape[:2]) > 200
    assert len(np.unique(picture)) > 50
    code, _, errors = run(
        "show-batch", "--config.data.imagesize=16", f"--output={tmp_path}/not.png"
    )
    assert code == 2
    assert "imagesize" in errors[0]
    assert not (tmp_path / "not.png").exists()


def test_convert_refuses_a_report(photos, run, tmp_path):
    code, _, errors = run(
        "verify-data", f"--data={photos}", "--convert=new", f"--output={tmp_path}/report.json"
    )
    assert code == 2
    assert "cannot be combined" in errors[0]
