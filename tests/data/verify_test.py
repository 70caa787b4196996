"""Tests of `data.verify`, which reads all examples and reports the bad ones."""

import numpy as np
import pytest
from PIL import Image

from keras_vit import data
from keras_vit.data import examples

from .helpers import jpeg, png


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_patches": 4, "patch_size": 8, "train_crop": "inception"},
        {"augreg": "medium1", "randaugment_form": "original", "image_size": 224},
    ],
    ids=["default", "NaFlex", "augmentation"],
)
def test_verify_finds_bad_and_rotated_files_duplicates_and_empty_classes(options, photos, broken):
    (photos / "bee" / "twin.jpg").write_bytes(jpeg(0))
    (photos / "dog").mkdir()
    exif = Image.Exif()
    for name, orientation in (("bee/00", 6), ("bee/02", 1), ("cat/00", 3)):
        exif[0x0112] = orientation
        Image.new("RGB", (12, 8)).save(photos / f"{name}.jpg", exif=exif)
    report = data.verify(data.folder(photos), **options)
    assert set(report["bad"]) == set(report["reasons"]) == broken and report["examples"] == 24
    assert report["reasons"][str(photos / "cat" / "02.jpg")] == "the file is empty"
    assert report["duplicates"] == [
        [str(photos / "ant" / "00.jpg"), str(photos / "bee" / "twin.jpg")]
    ]
    assert report["rotated"] == [str(photos / "bee" / "00.jpg"), str(photos / "cat" / "00.jpg")]
    assert report["empty_classes"] == ["dog"]


PNG = png(np.random.default_rng(0).integers(0, 256, (20, 28, 3)).astype(np.uint8))


def test_reasons_are_one_line_without_a_stack_trace(tmp_path):
    files = {
        "text.jpg": (b"this is no image", "not an image in a known format"),
        "half.jpg": (jpeg(0)[:300], "Invalid JPEG"),
        "half.png": (PNG[: len(PNG) // 2], "Invalid PNG"),
        "flip.png": (PNG[:200] + bytes([PNG[200] ^ 1]) + PNG[201:], "Invalid PNG"),
        "gif.jpg": (b"GIF89a" + bytes(30), "not an image in a known format"),
    }
    folder = tmp_path / "cat"
    folder.mkdir()
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    reasons = data.verify(data.folder(tmp_path))["reasons"]
    for name, (_, message) in files.items():
        reason = reasons[str(folder / name)]
        assert message in reason
        for text in ("function_node", "Graph execution", "File ", "\n", "Op:", "[["):
            assert text not in reason


def test_decoder_is_traced_once(photos, monkeypatch, caplog):
    traces = []
    decode_pixels = examples.decode_pixels

    def decode_and_note(*args, **kwargs):
        traces.append(args)
        return decode_pixels(*args, **kwargs)

    monkeypatch.setattr(examples, "decode_pixels", decode_and_note)
    (photos / "bee" / "other.png").write_bytes(PNG)
    assert not data.verify(data.folder(photos))["bad"] and len(traces) == 1
    assert "retracing" not in caplog.text
