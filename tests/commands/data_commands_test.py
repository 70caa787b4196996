"""Tests of the commands `verify-data` and `show-batch`."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

import keras_vit

from ..shared import SIZES
from .conftest import error_line, random_pixels, write_image


@pytest.fixture
def photos(tmp_path):
    for seed, name in enumerate(["a/0", "a/1", "b/0", "b/1"]):
        write_image(tmp_path / "photos" / f"{name}.jpg", random_pixels(20, 24, 3, seed=seed))
    return tmp_path / "photos"


@pytest.fixture
def verify(cli):
    """Returns a function that runs `keras-vit verify-data` and returns its exit code and output."""

    def run(*flags):
        done = cli("verify-data", *flags)
        return done.returncode, done.stdout

    return run


def test_verify_data_exits_with_code_1_for_bad_data(photos, verify, tmp_path):
    (photos / "a/2.jpg").write_bytes((photos / "a/1.jpg").read_bytes())
    (photos / "b/2.jpg").write_text("no image")
    (photos / "c").mkdir()
    code, output = verify(f"--data={photos}", f"--output={tmp_path}/report.json")
    assert code == 1
    bad = f"{photos}/b/2.jpg"
    for text in (f"bad: {bad}: ", "no examples: c", f"duplicates: {photos}/a/1.jpg, "):
        assert text in output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["bad"] == [bad]


def test_verify_data_reads_all_splits_of_a_folder(photos, verify, tmp_path):
    shutil.copytree(photos, tmp_path / "both/train")
    shutil.copytree(photos / "a", tmp_path / "both/val/a")
    code, output = verify(f"--data={tmp_path}/both")
    assert code == 1
    assert "6 examples: 0 bad, 2 groups of duplicates, 1 empty classes" in output
    assert "no examples: val: b" in output
    assert len(re.findall("duplicates: train: .*, val: ", output)) == 2


def test_verify_data_accepts_a_training_config(photos, verify):
    config = [
        "--config=small_data:ViT-Ti/16,folder",
        f"--config.data.path={photos}",
        "--config.data.test_share=0.5",
    ]
    code, output = verify(*config, "--config.data.max_megapixels=0.0001")
    assert code == 1
    assert "4 examples: 4 bad" in output
    assert "bad: train: " in output


def test_verify_data_names_files_that_training_does_not_read(photos, verify):
    Image.new("L", (8, 8)).save(photos / "a/3.tif")
    Image.new("L", (8, 8)).save(photos / "b/3.png")
    code, output = verify(f"--data={photos}")
    assert code == 0
    assert "not read: 1 HEIC, AVIF or TIFF" in output
    assert "gray: 1 files" in output


def test_verify_data_converts_a_file_once(photos, verify, tmp_path):
    Image.new("L", (8, 8)).save(photos / "a/3.tif")
    flags = (f"--data={photos}", f"--convert={tmp_path}/new")
    assert verify(*flags) == (0, "1 files converted, 0 skipped\n")
    assert (tmp_path / "new/a/3.tif.png").exists()
    code, output = verify(*flags)
    assert code == 1
    assert "3.tif.png exists" in output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data=nowhere"], "--data must be a folder"),
        (["--data=PHOTOS", "--convert=new", "--output=a.json"], "cannot be combined"),
    ],
)
def test_verify_data_rejects_bad_flags(flags, message, photos, cli):
    done = cli("verify-data", *(flag.replace("PHOTOS", str(photos)) for flag in flags))
    assert message in error_line(done)


def test_show_batch_draws_the_inputs_of_the_model(photos, cli, tmp_path):
    pytest.importorskip("matplotlib")
    (photos / "a").rename(photos / "$5_^ to $6")  # matplotlib must not typeset it as math
    preprocessing = keras_vit.Preprocessing(mean=(9,) * 3, std=(5,) * 3)
    model = keras_vit.VisionTransformer(
        **SIZES, input_shape=(16, 16, 3), preprocessing=preprocessing
    )
    keras_vit.checkpoints.save(model, tmp_path / "vit.npz")
    done = cli(
        "show-batch",
        "--config.task=distillation",
        "--config.data.name=folder",
        f"--config.data.path={photos}",
        "--config.data.test_share=0.5",
        "--config.data.image_size=16",
        "--config.data.mixup_alpha=0.5",
        f"--config.weights={tmp_path}/vit.npz",
        "--batch_size=2",
        f"--output={tmp_path}/out.png",
    )
    assert "out.png" in done.stdout, done.stderr
    assert "images are normalized with mean=(9" in done.stdout
    picture = np.array(Image.open(tmp_path / "out.png"))
    assert min(picture.shape[:2]) > 200
    assert len(np.unique(picture)) > 50
