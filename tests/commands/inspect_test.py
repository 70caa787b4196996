"""Tests of `keras-vit inspect`."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.commands import inspect_model

from ..shared import SIZES
from .conftest import error_line, random_pixels, write_image


@pytest.fixture
def model():
    return keras_vit.VisionTransformer(**SIZES, classes=10, input_shape=(8, 8, 3))


def test_inspect_writes_a_report_for_one_image(model, cli, tmp_path):
    pytest.importorskip("matplotlib")
    model.save(tmp_path / "model.keras")
    write_image(tmp_path / "one.jpg", random_pixels(9, 8, 3))
    flags = (f"--model={tmp_path}/model.keras", f"--output={tmp_path}/pages")
    done = cli("inspect", *flags, f"--data={tmp_path}/one.jpg")
    assert done.returncode == 0, done.stderr
    assert "images of" in done.stdout
    assert (tmp_path / "pages/index.html").exists()


@pytest.mark.parametrize("flags", [["--data=./photos"], ["--data=folder", "--data_path=photos"]])
def test_images_of_all_classes_are_drawn(flags, model, parse, tmp_path, monkeypatch):
    for i in range(12):
        write_image(tmp_path / f"photos/{i // 4}/{i:02}.png", random_pixels(8, 8, 3))
    monkeypatch.chdir(tmp_path)
    parse(inspect_model, *flags, "--shown=3")
    _, names = inspect_model.read_images(model, {}, 9)
    assert [Path(name).name for name in names[:3]] == ["00.png", "04.png", "08.png"]
    assert len(set(names)) == 9
    _, names = inspect_model.read_images(model, {}, 5)
    assert sorted(Path(name).stem for name in names) == ["00", "02", "05", "08", "11"]


def test_tilde_is_the_home_folder(model, parse, tmp_path, monkeypatch):
    write_image(tmp_path / "photos/one.png", random_pixels(8, 8, 3))
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("~/photos", "~/photos/one.png"):
        parse(inspect_model, f"--data={path}")
        assert inspect_model.read_images(model, {}, 1)[1] == ["one.png"]


def test_damaged_and_large_files_are_skipped(model, parse, tmp_path, monkeypatch, capsys):
    for i in (0, 2, 3):
        write_image(tmp_path / "digits" / f"{i}.png", random_pixels(8, 8, 3))
    (tmp_path / "digits/1.png").write_bytes(b"no image")
    monkeypatch.chdir(tmp_path)
    parse(inspect_model, "--data=./digits")
    images, names = inspect_model.read_images(model, {}, 10)
    assert sorted(names) == ["0.png", "2.png", "3.png"]
    assert images.shape == (3, 8, 8, 3)
    assert "1.png cannot be read: it is not an image" in capsys.readouterr().err
    details = {"recipe": {"data": {"max_megapixels": 1e-5}}}
    with pytest.raises(ValueError, match="At least one image must be readable"):
        inspect_model.read_images(model, details, 10)


@pytest.mark.parametrize("flags", [["--data=digits"], ["--data=./digits", "--data_path=."]])
def test_datasets_are_preferred_to_folders(flags, parse, tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inspect_model.shared_flags, "load_data", lambda *_, **__: (None, "", ""))
    parse(inspect_model, *flags)
    with pytest.raises(ValueError, match="--data must name"):
        inspect_model.read_images(None, {}, 10)


def test_exif_setting_of_an_export_is_applied(model, parse, tmp_path):
    pixels = random_pixels(8, 8, 3)
    exif = Image.Exif()
    exif[0x0112] = 3  # the camera was upside down
    Image.fromarray(pixels).save(tmp_path / "one.jpg", exif=exif)
    parse(inspect_model, f"--data={tmp_path}/one.jpg")
    upright, stored = (inspect_model.read_images(model, {"exif": x}, 1)[0] for x in (True, False))
    np.testing.assert_allclose(upright, stored[:, ::-1, ::-1])


def test_missing_file_of_class_names_is_refused(model, parse):
    parse(inspect_model, "--class_names=nothing.txt")
    with pytest.raises(ValueError, match="does not exist.*class_names='nothing.txt'"):
        inspect_model.find_classifier(model, {})


def test_data_are_required(model, cli, tmp_path):
    model.save(tmp_path / "model.keras")
    line = error_line(cli("inspect", f"--model={tmp_path}/model.keras"))
    assert "--data must name an image file" in line
