"""Tests of the files that `keras-vit verify-data --convert` writes."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from keras_vit.commands import conversion

RED_ABOVE_BLUE = np.repeat(np.uint8([[[200, 30, 30]], [[30, 30, 200]]]), [8, 8], 0).repeat(24, 1)
ORIENTATION = 0x0112  # the tag of EXIF
needs_avif = pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")


def _save(path, pixels=RED_ABOVE_BLUE, orientation=1, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image = Image.fromarray(pixels)
    image = image.convert(mode or image.mode)
    image.save(path, **{"tiffinfo" if path.suffix == ".tif" else "exif": exif})


def _convert(tmp_path):
    return conversion.convert(str(tmp_path / "photos"), str(tmp_path / "converted"))


def _pixels(path):
    with Image.open(path) as image:
        return np.array(image)


def _names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@needs_avif
def test_converts_upright_into_the_same_folders(tmp_path):
    _save(tmp_path / "photos/cat/a.avif", orientation=6)
    _save(tmp_path / "photos/cat/more/b.tif", orientation=6)
    _save(tmp_path / "photos/dog/c.jpg")
    assert _convert(tmp_path) == (2, {})
    converted = tmp_path / "converted"
    assert _names(converted) == ["cat/a.avif.jpg", "cat/more/b.tif.png"]
    for name in _names(converted):
        with Image.open(converted / name) as image:
            assert image.size == (16, 24)
            assert image.getexif().get(ORIENTATION, 1) == 1
            np.testing.assert_allclose(np.array(image)[12, 1], [30, 30, 200], atol=8)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_tiff_becomes_lossless_png(mode, tmp_path):
    _save(tmp_path / "photos/a.tif", mode=mode)
    assert _convert(tmp_path) == (1, {})
    converted = _pixels(tmp_path / "converted/a.tif.png")
    np.testing.assert_array_equal(converted, _pixels(tmp_path / "photos/a.tif"))


def test_16_bits_stay(tmp_path):
    pixels = np.arange(60, dtype=np.uint16).reshape(6, 10) * 1000
    _save(tmp_path / "photos/a.tif", pixels)
    assert _convert(tmp_path) == (1, {})
    np.testing.assert_array_equal(_pixels(tmp_path / "converted/a.tif.png"), pixels)


@needs_avif
def test_transparency_stays(tmp_path):
    _save(tmp_path / "photos/a.avif", np.full((8, 8, 4), 99, np.uint8))
    assert _convert(tmp_path) == (1, {})
    assert _pixels(tmp_path / "converted/a.avif.png").shape == (8, 8, 4)


def test_skips_and_names_what_it_does_not_convert(tmp_path):
    photos = tmp_path / "photos"
    converted = tmp_path / "converted"
    for name in ("good", "half", "done"):
        _save(photos / f"{name}.tif")
    _save(photos / "float.tif", np.ones((4, 4), np.float32))
    # Pillow neither inverts 16 bits whose white is 0, nor shifts signed values.
    deep = Image.fromarray(np.ones((4, 4), np.uint16))
    deep.save(photos / "inverted.tif", tiffinfo={262: 0})
    Image.new("L", (4, 4)).save(photos / "signed.tif", tiffinfo={339: 2})
    content = (photos / "half.tif").read_bytes()
    (photos / "half.tif").write_bytes(content[: len(content) // 2])
    converted.mkdir()
    (converted / "done.tif.png").write_text("mine")
    done, skipped = _convert(tmp_path)
    assert done == 1
    bad = ("done", "float", "half", "inverted", "signed")
    assert sorted(skipped) == [str(photos / f"{name}.tif") for name in bad]
    assert _names(converted) == ["done.tif.png", "good.tif.png"]
    assert (converted / "done.tif.png").read_text() == "mine"


def test_heic_becomes_jpeg(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    _save(tmp_path / "photos/a.heic")
    assert _convert(tmp_path) == (1, {})
    assert _names(tmp_path / "converted") == ["a.heic.jpg"]


def test_heic_needs_a_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.heic").touch()
    with pytest.raises(ValueError, match=r"pillow_heif.*keras_vit\[heic\]"):
        _convert(tmp_path)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("photos", "outside of --data"),
        ("photos/new", "outside of --data"),
        ("link/new", "outside of --data"),
        ("gs://bucket/new", "local"),
        ("note.txt", "not a file"),
    ],
)
def test_target_must_be_another_local_folder(target, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Path("link").symlink_to("photos")
    Path("note.txt").touch()
    with pytest.raises(ValueError, match=message):
        conversion.convert("photos", target)
